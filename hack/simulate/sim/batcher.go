package sim

import (
	"fmt"
	"slices"
	"time"

	"sluice.dev/sluice/hack/simulate/load"
	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/degrade"
	"sluice.dev/sluice/internal/quota"
	"sluice.dev/sluice/internal/zone"
)

// batcher is one batcher pod: a batching.Core and, in front of it, what the gateway does with a request.
type batcher struct {
	w    *world
	name string
	core *batching.Core
	wake time.Time
	free []*parked
	gone bool // died, or has drained

	leaving bool // was told to go

	// Gateway.
	offered  []uint64 // by tier, ever
	recent   [2][]uint64
	second   time.Time // when recent[0] began
	zones    zone.State
	own      zone.Decision
	live     int
	signal   *zone.Signal
	beat     time.Time // last scrape of the operator
	permille []int64
	debt     []int64

	// What the operator saw at its last scrape.
	seen  scrape
	rated bool
}

// parked is one request that waits at a batcher.
type parked struct {
	ticket batching.Ticket
	at     time.Time
	grant  quota.Grant
	cost   quota.Cost // what it uses if it is served
	zone   zone.Name  // that it was judged by
	taken  []degrade.Taken
}

func (w *world) addBatcher() *batcher {
	w.made++
	b := &batcher{w: w, name: fmt.Sprintf("%s-batcher-%d", w.doc.Name, w.made)}
	cfg := w.cfg
	cfg.ID = b.name
	b.core = batching.NewCore(cfg, b.done)
	tiers := len(w.doc.Tiers)
	b.offered, b.permille, b.debt = make([]uint64, tiers), make([]int64, tiers), make([]int64, tiers)
	b.recent = [2][]uint64{make([]uint64, tiers), make([]uint64, tiers)}
	b.second, b.beat = w.now, w.now
	for i := range b.debt {
		b.debt[i] = 999
	}
	w.batchers = append(w.batchers, b)
	return b
}

// ready puts b behind the Service.
func (b *batcher) ready() {
	if b.gone {
		return
	}
	b.w.serving = append(b.w.serving, b)
	b.w.membersChanged()
	b.endpoints()
	b.look()
}

// membersChanged tells every batcher how many there are.
func (w *world) membersChanged() {
	for _, b := range w.batchers {
		b.core.SetBatchers(max(1, len(w.serving)))
	}
}

// leave takes b from the Service; it goes once what it holds is answered.
func (b *batcher) leave() {
	b.w.serving = slices.DeleteFunc(b.w.serving, func(x *batcher) bool { return x == b })
	b.w.membersChanged()
	b.core.Stop()
	b.pump()
}

// die is a crash: whoever waits gets a reset connection.
func (b *batcher) die() {
	b.w.serving = slices.DeleteFunc(b.w.serving, func(x *batcher) bool { return x == b })
	b.gone, b.wake = true, time.Time{}
	for range b.core.Parked() {
		b.w.rec.lost++
	}
	b.w.batchers = slices.DeleteFunc(b.w.batchers, func(x *batcher) bool { return x == b })
	b.w.membersChanged()
}

// take is the gateway's pipeline: quota, hours, zone, the tier's ladder, then the batcher's feasibility.
func (b *batcher) take(tier int, who tenant, q load.Request) {
	w := b.w
	p := b.parked()
	p.at = w.now
	ask := quota.Ask{
		Tenant: who.name, Limits: who.limits, Tier: w.doc.Tiers[tier].Name, TierLimits: quota.Limits(w.doc.Tiers[tier].Limits),
		PoolLimits: quota.Limits(w.doc.Gateway.SharedLimits), Cost: quota.Cost{Requests: 1, Tokens: int64(q.Prompt) + int64(q.Answer)},
	}
	if !ask.Unlimited() {
		p.cost = ask.Cost
		r := w.ledger.Reserve(w.now, ask)
		if !r.Granted {
			reason := map[quota.Scope]string{quota.OfTier: "tier_", quota.OfPool: "shared_"}[r.Scope] + "quota_" + string(r.Of)
			if r.TooLarge {
				reason = "cost_above_burst"
			}
			w.rec.refused(tier, reason)
			b.release(p)
			return
		}
		p.grant = r.Grant
	}
	if h := w.hours[tier]; h != nil && !b.idle() {
		if open, _ := h.Open(w.now); !open {
			w.ledger.Settle(w.now, p.grant, quota.Cost{})
			w.rec.refused(tier, "outside_hours")
			b.release(p)
			return
		}
	}
	b.count(tier)
	w.rec.offer(tier)
	p.zone = b.zone()
	params := b.cheaper(p, tier, q)
	if b.live > 0 && !b.pass(tier) {
		reason := zone.CauseShed
		if w.doc.Tiers[tier].Background {
			reason = zone.CausePaused
		}
		b.refuse(p, tier, reason)
		return
	}
	size := min(4*int(q.Prompt), len(w.text), w.doc.Gateway.MaxInputBytes)
	p.ticket.Request = batching.Request{Tier: tier, Flow: who.name, Input: w.text[:size], Params: params, Arrival: w.now}
	p.ticket.Tag = p
	if err := b.core.Enqueue(w.now, &p.ticket); err != nil {
		b.refuse(p, tier, string(err.Cause))
		return
	}
	b.pump()
}

func (b *batcher) parked() *parked {
	if n := len(b.free); n > 0 {
		p := b.free[n-1]
		b.free = b.free[:n-1]
		return p
	}
	return &parked{}
}

func (b *batcher) release(p *parked) {
	p.ticket.Reset()
	p.grant, p.cost, p.taken = quota.Grant{}, quota.Cost{}, nil
	b.free = append(b.free, p)
}

func (b *batcher) refuse(p *parked, tier int, reason string) {
	b.w.ledger.Settle(b.w.now, p.grant, quota.Cost{})
	if !b.instead(p, tier, reason) {
		b.w.rec.refused(tier, reason)
	}
	b.release(p)
}

// done is called by the core with every admitted request, once.
func (b *batcher) done(t *batching.Ticket) {
	p := t.Tag.(*parked)
	w := b.w
	if t.Err != nil {
		w.ledger.Settle(w.now, p.grant, quota.Cost{})
		if !b.instead(p, t.Tier, string(t.Err.Cause)) {
			w.rec.failed(t.Tier, string(t.Err.Cause))
		}
	} else {
		w.ledger.Settle(w.now, p.grant, p.cost)
		w.rec.served(t.Tier, w.now.Sub(p.at))
		w.rec.degraded(t.Tier, p.taken)
	}
	b.release(p)
}

// pump sends what must leave and notes when to look again.
func (b *batcher) pump() {
	if b.gone {
		return
	}
	w := b.w
	for x := b.core.Next(w.now); x != nil; x = b.core.Next(w.now) {
		w.nodes.launch(b, x)
	}
	b.wake = b.core.Wake(w.now)
	if !b.wake.IsZero() && !b.wake.After(w.now) {
		b.wake = w.now.Add(10 * time.Microsecond) // as soon as a timer can fire
	}
	if b.leaving && b.core.Parked() == 0 {
		b.gone, b.wake = true, time.Time{}
		w.batchers = slices.DeleteFunc(w.batchers, func(x *batcher) bool { return x == b })
	}
}

// endpoints tells b which workers are Ready.
func (b *batcher) endpoints() {
	if b.gone {
		return
	}
	now := b.w.now
	var ids []batching.WorkerID
	for _, x := range b.w.nodes.workers {
		if x.phase == ready {
			ids = append(ids, batching.WorkerID{Addr: x.name, Pod: x.name})
		}
	}
	b.core.SetWorkers(now, ids)
	for _, id := range ids {
		if view, _, _ := b.core.WorkerView(now, id.Addr); view == "unhealthy" {
			b.probe(id.Addr)
		}
	}
	b.look()
	b.pump()
}

// probe asks a worker how it is.
func (b *batcher) probe(addr string) {
	if b.gone {
		return
	}
	x := b.w.nodes.find(addr)
	if x == nil || x.phase != ready {
		return
	}
	if x.run != nil && x.run.by == b && !x.run.over {
		return // its own batch runs there
	}
	if x.run != nil {
		b.w.at(x.free, func() { b.probe(addr); b.pump() })
		b.core.WorkerBusy(b.w.now, addr, x.free.Sub(b.w.now))
		return
	}
	b.core.WorkerIdle(b.w.now, addr)
}
