package fleet

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"sluice.dev/sluice/internal/wire"
)

// freshFor is how old a report may be: two scrapes may fail. The heartbeat of a gateway is as patient.
const freshFor = 3*Interval + Timeout

// measured is the number of full batches from which on measured service times are believed.
const measured = 20

// Load is what a pool's batchers report, all together, at one instant.
type Load struct {
	// Rounds counts the scrapes of the pool: a caller that sees the same number sees the same reports.
	Rounds uint64
	// Complete says that every Ready batcher and standalone gateway has a fresh report with rates.
	Complete bool
	// Gateways is the number of standalone gateways with a fresh report with rates.
	Gateways int
	// Sources is the number of batchers with a fresh report with rates.
	Sources int
	// Missing names the others, with what is wrong.
	Missing []string

	// Offered is what clients want in requests/s, all tiers: what the gateways saw, those inside batchers and
	// the standalone ones. What these hand to a batcher is not counted there again.
	Offered float64
	ByTier  map[string]float64 // the same, by tier
	Depth   int                // requests waiting
	Queued  map[string]int     // the same, by tier

	ServiceTime time.Duration // measured median; 0 where fewer than 20 batches were measured
	Gap         time.Duration // between a worker finishing and its next batch; 0 where not measured

	BatchesPerSecond, ItemsPerSecond float64
	BusySeconds                      float64 // GPU seconds a second, all workers

	Batchers []Batcher             // sorted by pod
	Views    map[string]WorkerView // by the worker's pod name or, where a batcher does not know it, IP:port

	UnknownTierTenants []string

	// Certificates are what the gateways of a pool with TLS serve, those that are not Ready included, in the order
	// of their pods' names.
	Certificates []Certificate
	// Reroutes are what is wrong with the pools that ladders name, as the gateways see it, in the same order.
	Reroutes []RerouteProblem
}

// RerouteProblem is what one gateway says of a pool that it hands requests to.
type RerouteProblem struct {
	Pod string
	wire.RerouteProblem
}

// Certificate is what one gateway says of its certificate.
type Certificate struct {
	Pod string
	wire.TLSStatus
}

// Poison is what one batcher found out about inputs that fail the function.
type Poison struct {
	Start  string // of the batcher's process: its count begins anew with each
	Count  uint64 // requests answered so after an attempt
	Latest string // why the latest failed
}

// Batcher is one batcher's report.
type Batcher struct {
	Pod    string
	UID    types.UID
	Age    time.Duration
	Lambda float64 // requests/s offered to it, by clients or standalone gateways
	Poison Poison
}

// WorkerView is how the batchers, all together, see a worker.
type WorkerView struct {
	Unhealthy bool
	Idle      time.Duration // since its last batch, by the batcher that saw it last; 0 while busy
	Message   string
}

// Load returns what the pool's batchers reported, as of now.
func (s *Scraper) Load(pool types.NamespacedName, now time.Time) Load {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := Load{ByTier: map[string]float64{}, Queued: map[string]int{}, Views: map[string]WorkerView{}}
	p := s.pools[pool]
	if p == nil {
		return l
	}
	l.Rounds = p.rounds
	var service, gap mean
	ready := 0
	for _, t := range p.targets {
		sample := p.pods[t.UID]
		age := now.Sub(sample.received)
		if c := sample.last.TLS; c != nil && age <= freshFor {
			l.Certificates = append(l.Certificates, Certificate{t.Name, *c})
		}
		if age <= freshFor {
			for _, r := range sample.last.Reroutes {
				l.Reroutes = append(l.Reroutes, RerouteProblem{t.Name, r})
			}
		}
		if t.Unready {
			continue
		}
		ready++
		switch {
		case sample.received.IsZero() && sample.err == nil:
			l.Missing = append(l.Missing, t.Name+" (not scraped yet)")
			continue
		case sample.received.IsZero() || age > freshFor:
			l.Missing = append(l.Missing, t.Name+" ("+complaint(sample.err)+")")
			continue
		case !sample.rated:
			l.Missing = append(l.Missing, t.Name+" (just started)")
			if !t.Gateway {
				l.addQueue(sample.last)
			}
			continue
		case t.Gateway:
			l.Gateways++
			l.addOffered(sample)
			continue
		}
		l.Sources++
		l.Batchers = append(l.Batchers, Batcher{Pod: t.Name, UID: t.UID, Age: age, Lambda: sample.rates.offered + sample.rates.relayed,
			Poison: Poison{Start: sample.last.StartID, Count: sample.last.Poisoned, Latest: sample.last.LatestPoison}})
		l.add(sample)
		if n := sample.last.ServiceSamples; n >= measured {
			service.add(sample.last.ServiceP50Ms, float64(n))
			gap.add(sample.last.GapMs, float64(n))
		}
	}
	l.ServiceTime, l.Gap = service.milliseconds(), gap.milliseconds()
	l.Complete = l.Sources > 0 && l.Sources+l.Gateways == ready
	slices.SortFunc(l.Batchers, func(a, b Batcher) int { return strings.Compare(a.Pod, b.Pod) })
	slices.Sort(l.UnknownTierTenants)
	l.UnknownTierTenants = slices.Compact(l.UnknownTierTenants)
	return l
}

func complaint(err error) string {
	if err == nil {
		return "no fresh report"
	}
	return err.Error()
}

// addOffered adds what a gateway saw of clients.
func (l *Load) addOffered(s *series) {
	for name, v := range s.rates.tiers {
		l.ByTier[name] += v
	}
	l.Offered += s.rates.offered
	l.UnknownTierTenants = append(l.UnknownTierTenants, s.last.UnknownTierTenants...)
}

func (l *Load) add(s *series) {
	l.addOffered(s)
	l.BatchesPerSecond += s.rates.batches
	l.ItemsPerSecond += s.rates.items
	l.BusySeconds += s.rates.busy
	l.addQueue(s.last)
	for _, w := range s.last.Workers {
		l.addView(w)
	}
}

func (l *Load) addQueue(s wire.Stats) {
	l.Depth += s.QueueDepth
	for _, t := range s.Tiers {
		l.Queued[t.Name] += t.Queued
	}
}

// addView joins one batcher's view of a worker: unhealthy for one is unhealthy, busy for one is busy, and
// idle is the shortest of all, for only the batcher that used it last knows.
func (l *Load) addView(w wire.WorkerView) {
	key := w.Pod
	if key == "" {
		key = w.Addr
	}
	v := WorkerView{Message: w.Message, Unhealthy: w.State == wire.ViewUnhealthy}
	if w.State == wire.ViewIdle || w.State == wire.ViewUnhealthy {
		v.Idle = time.Duration(w.IdleMs * float64(time.Millisecond))
	}
	if old, ok := l.Views[key]; ok {
		v.Idle = min(v.Idle, old.Idle)
		v.Unhealthy = v.Unhealthy || old.Unhealthy
		if v.Message == "" {
			v.Message = old.Message
		}
	}
	l.Views[key] = v
}

// View is how the batchers see a worker pod.
func (l Load) View(w Worker) WorkerView {
	if v, ok := l.Views[w.Name]; ok {
		return v
	}
	return l.Views[w.Addr()]
}

// mean is a weighted mean.
type mean struct{ sum, weight float64 }

func (m *mean) add(v, weight float64) {
	m.sum += v * weight
	m.weight += weight
}

func (m *mean) milliseconds() time.Duration {
	if m.weight == 0 {
		return 0
	}
	return time.Duration(m.sum / m.weight * float64(time.Millisecond))
}
