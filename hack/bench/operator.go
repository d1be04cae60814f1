package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/wire"
	"sluice.dev/sluice/internal/zone"
)

// scrapeEvery is the operator's own period.
const scrapeEvery = 2 * time.Second

// operator is the part of the operator that overload needs, without Kubernetes: it scrapes the batchers,
// classifies with internal/zone and hands the signal over in a file that the batchers watch.
type operator struct {
	pool     poolspec.Pool
	batchers []string // internal addresses
	names    []string // their pods
	file     string

	last  map[string]wire.Stats
	at    time.Time
	state zone.State
	made  int64
}

// run works until ctx ends. It does nothing in the first period: rates need two scrapes.
func (o *operator) run(ctx context.Context) {
	tick := time.NewTicker(scrapeEvery)
	defer tick.Stop()
	o.scrape(time.Now())
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			o.scrape(now)
		}
	}
}

// scrape is one tick.
func (o *operator) scrape(now time.Time) {
	stats := map[string]wire.Stats{}
	for i, a := range o.batchers {
		var s wire.Stats
		if err := getJSON("http://"+a+wire.PathStats, &s); err != nil {
			slog.Warn("scrape failed", "batcher", o.names[i], "err", err)
			continue
		}
		stats[o.names[i]] = s
	}
	last, since := o.last, now.Sub(o.at).Seconds()
	o.last, o.at = stats, now
	if last == nil {
		return
	}
	obs := zone.Observation{Complete: len(stats) == len(o.batchers), Sources: len(stats), Offered: make([]float64, len(o.pool.Tiers))}
	sig := zone.Signal{Version: zone.SignalVersion, Pool: o.pool.Name, ObservedAt: now}
	for _, name := range o.names {
		s, ok := stats[name]
		if !ok {
			continue
		}
		lambda := 0.0
		for i, t := range s.Tiers {
			if i < len(last[name].Tiers) && last[name].StartID == s.StartID {
				rate := float64(t.Offered-last[name].Tiers[i].Offered) / since
				obs.Offered[i] += rate
				lambda += rate
			}
		}
		obs.Depth += s.QueueDepth
		obs.Capacity = max(obs.Capacity, capacityOf(s, o.pool))
		sig.Workers = max(sig.Workers, live(s))
		sig.Batchers = append(sig.Batchers, zone.SignalBatcher{Pod: name, Lambda: lambda})
		sig.Offered += lambda
	}
	var d zone.Decision
	d, o.state = zone.Classify(now, zonePolicy(o.pool), obs, o.state)
	o.made++
	sig.Generation, sig.Zone, sig.Reason, sig.Since, sig.Capacity = o.made, d.Name, d.Reason, d.Since, obs.Capacity
	for i, t := range o.pool.Tiers {
		sig.Tiers = append(sig.Tiers, zone.SignalTier{Name: t.Name, AdmitPercent: d.Admit[i]})
	}
	if err := o.publish(sig); err != nil {
		slog.Warn("signal not published", "err", err)
	}
}

// publish replaces the file at once: a reader sees the old document or the new one.
func (o *operator) publish(sig zone.Signal) error {
	doc, err := sig.Encode()
	if err != nil {
		return err
	}
	if err := os.WriteFile(o.file+".new", []byte(doc), 0o644); err != nil {
		return err
	}
	return os.Rename(o.file+".new", o.file)
}

// capacityOf is mu as one batcher's figures give it: M·B / (S + g), S measured.
func capacityOf(s wire.Stats, p poolspec.Pool) float64 {
	cycle := (s.ServiceP50Ms + s.GapMs) / 1000
	if cycle <= 0 {
		return 0
	}
	return float64(live(s)) * float64(p.Batching.MaxSize) / cycle
}

// live counts the workers that a batcher can use.
func live(s wire.Stats) (n int) {
	for _, w := range s.Workers {
		switch w.State {
		case wire.ViewIdle, wire.ViewMine, wire.ViewOther:
			n++
		}
	}
	return n
}

func zonePolicy(p poolspec.Pool) zone.Policy {
	z := zone.Policy{YellowBacklog: p.Zones.YellowBacklog.D(), RedBacklog: p.Zones.RedBacklog.D(), YellowDepth: p.Zones.YellowDepth, RedDepth: p.Zones.RedDepth}
	for _, t := range p.Tiers {
		z.Tiers = append(z.Tiers, zone.Tier{Name: t.Name, Shedding: zone.Shedding(t.Shedding), Background: t.Background, ReservedPercent: t.ReservedPercent})
	}
	return z
}
