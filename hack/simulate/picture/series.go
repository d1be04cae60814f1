package picture

import (
	"time"

	"sluice.dev/sluice/hack/simulate/sim"
	"sluice.dev/sluice/internal/zone"
)

// column is what one step of the drawn time axis shows.
type column struct {
	from, to        time.Duration
	offered, served float64 // requests/s
	capacity        float64
	p95             time.Duration // the highest of its bins with enough requests
	depth           int           // the highest
	zone            zone.Name     // the worst
	ready, starting float64       // means
	pending, gone   float64
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
		n := float64(len(part))
		for _, b := range part {
			c.offered += float64(b.Offered)
			c.served += float64(b.Served)
			c.capacity += b.Capacity / n
			c.p95 = max(c.p95, b.P95)
			c.depth = max(c.depth, b.Depth)
			c.zone = zone.Worse(c.zone, b.Zone)
			c.ready += float64(b.Ready) / n
			c.starting += float64(b.Starting) / n
			c.pending += float64(b.Pending) / n
			c.gone += float64(b.Gone) / n
		}
		seconds := max((c.to - c.from).Seconds(), 1e-9)
		c.offered /= seconds
		c.served /= seconds
		cols = append(cols, c)
	}
	return cols
}

// utilization is offered over capacity, at most 1.5 for the drawing.
func (c column) utilization() float64 {
	if c.capacity <= 0 {
		if c.offered > 0 {
			return 1.5
		}
		return 0
	}
	return min(c.offered/c.capacity, 1.5)
}
