package picture

import (
	"time"

	"sluice.dev/sluice/hack/simulate/sim"
	"sluice.dev/sluice/internal/zone"
)

// column is what one step of the drawn time axis shows.
type column struct {
	from, to        time.Duration
	offered, served float64       // requests/s
	instead         float64       // the same, answered in the pool's stead
	capacity        float64       // at the end
	p95             time.Duration // the highest of its bins with enough requests
	depth           int           // the highest
	zone            zone.Name     // the worst
	ready, starting int           // at the end
	pending, gone   int
}

// columns joins bins until each column is wide enough to see, and long enough for rates without the noise of
// single arrivals.
func columns(r *sim.Result, most int) []column {
	per := (len(r.Bins) + most - 1) / most
	var cols []column
	var last time.Duration
	for i := 0; i < len(r.Bins); i += per {
		part := r.Bins[i:min(i+per, len(r.Bins))]
		c := column{from: last, to: part[len(part)-1].At, zone: zone.Green}
		last = c.to
		for _, b := range part {
			c.offered += float64(b.Offered)
			c.served += float64(b.Served)
			c.instead += float64(b.Instead)
			c.capacity = b.Capacity
			c.p95 = max(c.p95, b.P95)
			c.depth = max(c.depth, b.Depth)
			c.zone = zone.Worse(c.zone, b.Zone)
			c.ready, c.starting, c.pending, c.gone = b.Ready, b.Starting, b.Pending, b.Gone
		}
		seconds := max((c.to - c.from).Seconds(), 1e-9)
		c.offered /= seconds
		c.served /= seconds
		c.instead /= seconds
		cols = append(cols, c)
	}
	return cols
}

// mostUtilization is where the drawing of an overload ends.
const mostUtilization = 2

// utilization is offered over capacity, at most mostUtilization.
func (c column) utilization() float64 {
	switch {
	case c.offered <= 0:
		return 0
	case c.capacity <= 0:
		return mostUtilization
	}
	return min(c.offered/c.capacity, mostUtilization)
}
