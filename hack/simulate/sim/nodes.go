package sim

import (
	"fmt"
	"slices"
	"time"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/scaling"
)

// phase is where a worker is in its life.
type phase int

const (
	pending  phase = iota // has no GPU
	starting              // loads
	ready
	draining // answers "draining", finishes its batch and goes
)

// worker is one GPU worker pod.
type worker struct {
	name    string
	created time.Time
	placed  time.Time // since when it holds a GPU
	phase   phase
	run     *batchRun
	free    time.Time // when its batch ends, while one runs
	idle    time.Time // since when none does
}

// batchRun is a batch at a worker.
type batchRun struct {
	by    *batcher
	batch *batching.Batch
	over  bool // its batcher was answered, or is not to be
}

// nodes are the workers' Deployment and the GPUs under it.
type nodes struct {
	w       *world
	workers []*worker
	byName  map[string]*worker
	made    int
	want    int // spec.replicas
}

// begin makes n workers that are Ready.
func (n *nodes) begin(count int) {
	n.byName = map[string]*worker{}
	n.want = count
	for range count {
		n.add()
	}
	n.place()
	for _, x := range n.workers {
		if x.phase == starting {
			x.phase, x.created = ready, n.w.now.Add(-24*time.Hour)
		}
	}
	n.announce(0)
}

func (n *nodes) add() {
	n.made++
	x := &worker{name: fmt.Sprintf("%s-worker-%d", n.w.doc.Name, n.made), created: n.w.now}
	n.workers = append(n.workers, x)
	n.byName[x.name] = x
}

func (n *nodes) find(name string) *worker { return n.byName[name] }

// scale is a write of the Deployment's replicas. Victims go first, then those that serve least.
func (n *nodes) scale(to int, victims []string) {
	n.want = to
	leave := n.present() - to
	for _, name := range victims {
		if leave > 0 && n.retire(n.find(name)) {
			leave--
		}
	}
	for _, p := range []phase{pending, starting, ready} {
		for _, x := range slices.Clone(n.workers) {
			if leave > 0 && x.phase == p && n.retire(x) {
				leave--
			}
		}
	}
	n.fill()
}

// fill makes the pods that the Deployment lacks.
func (n *nodes) fill() {
	for n.present() < n.want {
		n.add()
	}
	n.place()
}

// present is the number of pods that are not leaving.
func (n *nodes) present() int {
	c := 0
	for _, x := range n.workers {
		if x.phase != draining {
			c++
		}
	}
	return c
}

// place gives pending workers a GPU, in order, while there is one.
func (n *nodes) place() {
	held := 0
	for _, x := range n.workers {
		if x.phase != pending {
			held++
		}
	}
	for _, x := range n.workers {
		if x.phase != pending || n.w.opt.GPUs > 0 && held >= n.w.opt.GPUs {
			continue
		}
		held++
		x.phase, x.placed = starting, n.w.now
		n.w.after(n.w.opt.ColdStart, func() {
			if x.phase == starting && n.byName[x.name] == x {
				x.phase, x.idle = ready, n.w.now
				n.announce(watchDelay)
			}
		})
	}
}

// announce tells the batchers which workers are Ready.
func (n *nodes) announce(d time.Duration) {
	n.w.after(d, func() {
		for _, b := range slices.Clone(n.w.batchers) {
			b.endpoints()
		}
	})
}

// retire makes a worker leave: at once, or when its batch is over.
func (n *nodes) retire(x *worker) bool {
	if x == nil || x.phase == draining {
		return false
	}
	was := x.phase
	x.phase = draining
	if was == ready {
		n.announce(watchDelay)
	}
	if x.run == nil {
		n.remove(x)
	}
	return true
}

func (n *nodes) remove(x *worker) {
	delete(n.byName, x.name)
	n.workers = slices.DeleteFunc(n.workers, func(y *worker) bool { return y == x })
	if !x.placed.IsZero() {
		n.w.rec.gpuTime += n.w.now.Sub(x.placed)
	}
	n.place()
}

// crash is the loss of a worker with its batch; its ReplicaSet makes another.
func (n *nodes) crash(x *worker) {
	if r := x.run; r != nil && !r.over {
		r.over = true
		n.finish(x, r, batching.Outcome{Kind: batching.Crashed, Detail: "connection reset"})
	}
	x.run = nil
	n.remove(x)
	n.announce(watchDelay)
	n.fill()
}

// launch sends a batch to its worker.
func (n *nodes) launch(b *batcher, batch *batching.Batch) {
	x := n.find(batch.Worker)
	refuse := func(o batching.Outcome) {
		n.w.after(refuseDelay, func() { n.finish(x, &batchRun{by: b, batch: batch}, o) })
	}
	switch {
	case x == nil || x.phase < ready:
		refuse(batching.Outcome{Kind: batching.Refused, Detail: "connection refused"})
		return
	case x.phase == draining:
		refuse(batching.Outcome{Kind: batching.Leaving})
		return
	case x.run != nil:
		refuse(batching.Outcome{Kind: batching.Busy, FreeIn: max(x.free.Sub(n.w.now), 0)})
		return
	}
	d := n.w.serviceTime()
	run := &batchRun{by: b, batch: batch}
	x.run, x.free = run, n.w.now.Add(d)
	n.w.rec.batch(len(batch.Tickets), d)
	if d > batch.Timeout {
		n.w.after(batch.Timeout, func() {
			if !run.over {
				run.over = true
				n.finish(x, run, batching.Outcome{Kind: batching.TimedOut, Detail: "no answer in time"})
			}
		})
	}
	n.w.at(x.free, func() {
		if x.run != run {
			return // it crashed
		}
		x.run, x.idle = nil, n.w.now
		if !run.over {
			run.over = true
			n.finish(x, run, batching.Outcome{Kind: batching.Answered, Results: n.w.answers[:len(batch.Tickets)]})
		}
		if x.phase == draining {
			n.remove(x)
		}
	})
}

// finish tells a batcher how its batch ended.
func (n *nodes) finish(x *worker, r *batchRun, o batching.Outcome) {
	b := r.by
	if b.gone {
		return
	}
	addr := r.batch.Worker
	if live := b.core.Finish(n.w.now, r.batch, o); !live && x != nil {
		n.w.after(probeDelay, func() { b.probe(addr); b.pump() })
		b.look()
	}
	b.pump()
}

// observe fills in the operator's view of the workers.
func (n *nodes) observe(o *scaling.Observation, coldStart time.Duration) {
	o.Current = n.want
	for _, x := range n.workers {
		late := n.w.now.Sub(x.created) > coldStart
		switch {
		case x.phase == draining:
			o.Draining++
			continue
		case x.phase == ready:
			o.Ready++
		case x.phase == pending && late:
			o.Unschedulable++
		case late:
			o.Failing++
		default:
			o.Starting++
		}
		v := scaling.Worker{Name: x.name, Pending: x.phase < ready}
		if x.phase == ready && x.run == nil {
			v.IdleFor = n.w.now.Sub(x.idle)
		}
		o.Workers = append(o.Workers, v)
	}
}
