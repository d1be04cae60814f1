package gateway

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/zone"
)

const (
	// viewEvery is how old a gateway's view of its own engine may be when a request is judged by it. With
	// it, a lost worker is felt by the next request after 10 ms; no tick is needed.
	viewEvery = 10 * time.Millisecond
	// classifyEvery is the tick of the gateway's own zone while its capacity does not change: the rule that
	// wants the load over capacity for two ticks means two looks at different seconds.
	classifyEvery = time.Second
	// redHold is the shortest stay in Red: a tier that is refused entirely need not ask again before.
	redHold = 10 * time.Second
)

// zoneView joins the gateway's own zone with the fleet's. Safe for concurrent use.
type zoneView struct {
	engine  Engine
	policy  zone.Policy
	ownOnly bool // what the pool says of a stale signal
	// hasHours says that a tier has hours, so that it matters whether the pool is idle.
	hasHours bool
	meters   []meter
	// debt spreads the admitted share of each tier evenly: an admission of 30 % lets the 4th, 7th, 10th ...
	// pass. No dice, so a rate of one in ten cannot refuse the same client fifty times.
	debt []atomic.Int64

	signal   atomic.Pointer[zone.Signal]
	lastBeat atomic.Pointer[time.Time]
	now      atomic.Pointer[view]

	mu         sync.Mutex // of what follows
	state      zone.State
	own        zone.Decision
	classified time.Time
	live       int
}

// view is what holds at one instant.
type view struct {
	at       time.Time
	snap     batching.Snapshot
	zone     zone.Name
	reason   string
	own      zone.Decision
	permille []int64 // admitted of each tier
	stale    bool    // the operator is silent
	idle     bool    // hardly any interactive work
	noWorker bool
}

func newZoneView(p poolspec.Pool, e Engine, now time.Time) *zoneView {
	v := &zoneView{
		engine: e, ownOnly: p.Gateway.StaleSignalOwnView,
		policy: zone.Policy{
			YellowBacklog: p.Zones.YellowBacklog.D(), RedBacklog: p.Zones.RedBacklog.D(),
			YellowDepth: p.Zones.YellowDepth, RedDepth: p.Zones.RedDepth,
		},
		meters: make([]meter, len(p.Tiers)), debt: make([]atomic.Int64, len(p.Tiers)),
	}
	for i, t := range p.Tiers {
		v.policy.Tiers = append(v.policy.Tiers, zone.Tier{Name: t.Name, Shedding: zone.Shedding(t.Shedding), Background: t.Background, ReservedPercent: t.ReservedPercent})
		v.hasHours = v.hasHours || t.Hours != nil
		v.debt[i].Store(999) // the first request passes unless nothing does
		v.meters[i].began = now
	}
	v.lastBeat.Store(&now)
	return v
}

func (v *zoneView) setSignal(s zone.Signal) {
	v.signal.Store(&s)
	v.now.Store(nil)
}

// beat notes that the operator asked.
func (v *zoneView) beat(now time.Time) {
	v.lastBeat.Store(&now)
	v.now.Store(nil)
}

// serviceTime is S, or its prior.
func (v *zoneView) serviceTime() time.Duration { return v.view(time.Now()).snap.ServiceP50 }

// view returns what holds now, at most viewEvery old.
func (v *zoneView) view(now time.Time) *view {
	last := v.now.Load()
	if last != nil && now.Sub(last.at) < viewEvery {
		return last
	}
	if last == nil {
		v.mu.Lock()
	} else if !v.mu.TryLock() {
		return last // somebody else is just renewing it
	}
	defer v.mu.Unlock()
	next := v.look(now)
	v.now.Store(next)
	return next
}

// interactive is the number of requests that wait and for which somebody waits.
func (v *zoneView) interactive(s batching.Snapshot) (n int) {
	if len(s.Tiers) == 0 {
		return s.Depth
	}
	for i, t := range s.Tiers {
		if i < len(v.policy.Tiers) && !v.policy.Tiers[i].Background {
			n += t.Queued
		}
	}
	return n
}

// isIdle says that there is hardly any interactive work.
func (v *zoneView) isIdle(now time.Time, w *view) bool {
	offered := 0.0
	for i := range v.meters {
		if !v.policy.Tiers[i].Background {
			offered += v.meters[i].rate(now)
		}
	}
	return zone.Idle(w.zone, offered, w.snap.MuShare)
}

// look takes a snapshot and joins both zones. v.mu is held.
func (v *zoneView) look(now time.Time) *view {
	snap := v.engine.Snapshot()
	if now.Sub(v.classified) >= classifyEvery || snap.Live != v.live {
		o := zone.Observation{Complete: true, Sources: 1, Depth: v.interactive(snap), Capacity: snap.MuShare}
		for i := range v.meters {
			o.Offered = append(o.Offered, v.meters[i].rate(now))
		}
		v.own, v.state = zone.Classify(now, v.policy, o, v.state)
		v.classified, v.live = now, snap.Live
	}
	w := &view{
		at: now, snap: snap, own: v.own, zone: v.own.Name, reason: v.own.Reason,
		permille: make([]int64, len(v.meters)), noWorker: snap.Live == 0,
		stale: now.Sub(*v.lastBeat.Load()) > zone.StaleAfter, // on this gateway's monotonic clock; the operator's scrape is the heartbeat
	}
	for i := range w.permille {
		w.permille[i] = 1000
		if i < len(v.own.Admit) {
			w.permille[i] = int64(v.own.Admit[i]*10 + 0.5)
		}
	}
	v.joinFleet(w)
	if v.hasHours {
		w.idle = v.isIdle(now, w)
	}
	return w
}

// joinFleet lets the fleet's zone make the gateway's stricter, never milder. A signal that says NoCapacity
// is not joined: the gateway sees by itself, and sooner, whether a worker is alive.
func (v *zoneView) joinFleet(w *view) {
	s := v.signal.Load()
	if s == nil || s.Reason == zone.ReasonNoCapacity || w.stale && v.ownOnly {
		return
	}
	if zone.Worse(w.zone, s.Zone) != w.zone {
		w.zone, w.reason = s.Zone, s.Reason
	}
	for i, t := range v.policy.Tiers {
		for _, st := range s.Tiers {
			if st.Name == t.Name {
				w.permille[i] = min(w.permille[i], int64(st.AdmitPercent*10+0.5))
			}
		}
	}
}

// checkZone counts the request as offered and admits the tier's share. Without a live worker it passes: the
// batcher says 503, since shedding (429) would hide an outage.
func (g *Gateway) checkZone(x *exchange) *refusal {
	tier := x.caller.tier
	if !x.retry {
		g.tiers[tier].offered.Add(1)
		g.zone.meters[tier].add(x.arrival)
	}
	v := g.zone.view(time.Now())
	x.zone = v.zone
	if v.noWorker || g.zone.pass(tier, v.permille[tier]) {
		return nil
	}
	g.tiers[tier].shed.Add(1)
	if e, ok := g.engine.(shedCounter); ok && !x.retry {
		e.Shed()
	}
	r := refuse(ReasonShed, "the pool is in zone %s (%s): %s%% of tier %s are admitted", v.zone, v.reason, percent(v.permille[tier]), g.pool.Tiers[tier].Name)
	if g.pool.Tiers[tier].Background {
		r = refuse(ReasonPaused, "the pool is in zone %s (%s): tier %s waits for quieter times", v.zone, v.reason, g.pool.Tiers[tier].Name)
	}
	r.retryAfter = g.zone.retryAfter(v, tier)
	if g.ladders[tier] != nil {
		x.pending = r
		return nil
	}
	return r
}

func percent(permille int64) string {
	if permille%10 == 0 {
		return fmt.Sprint(permille / 10)
	}
	return fmt.Sprintf("%d.%d", permille/10, permille%10)
}

// retryAfter is the drain time of the excess: what waits over half of the threshold of Yellow, where Yellow
// may end. A tier that is refused entirely waits at least as long as Red holds.
func (v *zoneView) retryAfter(w *view, tier int) time.Duration {
	d := w.own.Backlog - v.policy.YellowBacklog/2
	if w.permille[tier] == 0 {
		return max(d, redHold)
	}
	return max(d, retryMin)
}

// pass admits permille of 1000 requests of a tier, evenly spread.
func (v *zoneView) pass(tier int, permille int64) bool {
	if permille >= 1000 {
		return true
	}
	if permille <= 0 {
		return false
	}
	d := &v.debt[tier]
	for {
		old := d.Load()
		next := old + permille
		ok := next >= 1000
		if ok {
			next -= 1000
		}
		if d.CompareAndSwap(old, next) {
			return ok
		}
	}
}

// meter counts arrivals over the last two seconds, in slots of 100 ms. Safe for concurrent use.
type meter struct {
	mu    sync.Mutex
	began time.Time
	slot  int64
	n     [meterSlots]uint64
}

const (
	meterSlots = 20
	meterSlot  = 100 * time.Millisecond
)

func (m *meter) advance(now time.Time) {
	s := int64(now.Sub(m.began) / meterSlot)
	for range min(s-m.slot, meterSlots) {
		m.slot++
		m.n[m.slot%meterSlots] = 0
	}
	m.slot = max(m.slot, s)
}

func (m *meter) add(now time.Time) {
	m.mu.Lock()
	m.advance(now)
	m.n[m.slot%meterSlots]++
	m.mu.Unlock()
}

// rate is arrivals a second. Before two seconds have passed it divides by one at least, so that the first
// request does not look like a storm.
func (m *meter) rate(now time.Time) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.advance(now)
	sum := uint64(0)
	for _, n := range m.n {
		sum += n
	}
	age := now.Sub(m.began)
	part := age - time.Duration(m.slot)*meterSlot // of the slot that is under way
	over := min(max(age, time.Second), (meterSlots-1)*meterSlot+part)
	return float64(sum) / over.Seconds()
}
