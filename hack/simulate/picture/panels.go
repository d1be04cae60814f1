package picture

import (
	"fmt"
	"image/color"
	"math"
	"slices"
	"time"

	"sluice.dev/sluice/internal/zone"
)

// roof is the top of an axis for values up to most.
func roof(most float64) float64 {
	if most <= 0 {
		return 1
	}
	step := niceStep(most, 5)
	return math.Ceil(most*1.05/step) * step
}

func plain(v float64) string { return grouped(int(math.Round(v))) }

// rates: what was offered, how much of it was served, what the Ready workers could have served.
func (d *drawing) rates(p panel) {
	most := 0.0
	for _, c := range d.cols {
		most = max(most, c.offered, min(c.capacity, 2*c.offered))
	}
	p.top = roof(most)
	d.frame(p, "Requests per second", plain)
	floor := []point{{plotLeft, p.y1}, {plotRight, p.y1}}
	served := d.curve(p, func(c column) float64 { return min(c.served, c.offered) })
	answered := d.curve(p, func(c column) float64 { return min(c.served+c.instead, c.offered) })
	offered := d.curve(p, func(c column) float64 { return c.offered })
	d.between(served, floor, faded(blue, 0.28))
	d.between(answered, served, faded(violet, 0.45))
	d.between(offered, answered, faded(crimson, 0.55))
	d.line(offered, 1.3, ink)
	capacity := d.steps(p, func(c column) float64 { return c.capacity })
	d.dashed(capacity, 1.4, 7, 4, teal)
	keys := []key{{dashes, teal, "capacity"}, {solid, ink, "offered"}, {area, faded(crimson, 0.55), "not served"}}
	if slices.ContainsFunc(d.cols, func(c column) bool { return c.instead > 0 }) {
		keys = append(keys, key{area, faded(violet, 0.45), "answered instead"})
	}
	d.legend(p, append(keys, key{area, faded(blue, 0.28), "served"})...)
}

// latency: the p95 of what was served, against the strictest target.
func (d *drawing) latency(p panel) {
	target := time.Duration(math.MaxInt64)
	for _, t := range d.r.Tiers {
		target = min(target, t.Target)
	}
	most := target.Seconds() * 1000
	for _, c := range d.cols {
		most = max(most, c.p95.Seconds()*1000)
	}
	p.top = roof(most)
	d.frame(p, "Latency (ms)", plain)
	d.line(d.curve(p, func(c column) float64 { return c.p95.Seconds() * 1000 }), 1.3, violet)
	y := p.y(target.Seconds() * 1000)
	d.dashed([]point{{plotLeft, y}, {plotRight, y}}, 1.2, 5, 4, crimson)
	d.legend(p, key{dashes, crimson, "strictest target"}, key{solid, violet, "p95, all tiers"})
}

// queue: how many wait, over the colour of the zone.
func (d *drawing) queue(p panel) {
	most := 0.0
	for _, c := range d.cols {
		most = max(most, float64(c.depth))
	}
	p.top = roof(most)
	for i := 0; i < len(d.cols); {
		j := i
		for j+1 < len(d.cols) && d.cols[j+1].zone == d.cols[i].zone {
			j++
		}
		d.rect(d.x(d.cols[i].from), p.y0, d.x(d.cols[j].to), p.y1, zoneColours[d.cols[i].zone])
		i = j + 1
	}
	d.frame(p, "Queue depth, and the zone", plain)
	floor := []point{{plotLeft, p.y1}, {plotRight, p.y1}}
	depth := d.curve(p, func(c column) float64 { return float64(c.depth) })
	d.between(depth, floor, faded(ink, 0.35))
	d.line(depth, 1, ink)
	keys := []key{{solid, ink, "requests waiting"}}
	for _, z := range []struct {
		name  zone.Name
		share float64
	}{{zone.Green, d.s.Zones.GreenPercent}, {zone.Yellow, d.s.Zones.YellowPercent}, {zone.Red, d.s.Zones.RedPercent}} {
		keys = append(keys, key{area, zoneColours[z.name], fmt.Sprintf("%s %.1f %%", z.name, z.share)})
	}
	d.legend(p, keys...)
}

// workers: stacked by what they do, and how many the load would have needed in hindsight.
func (d *drawing) workers(p panel) {
	stack := func(n int) func(column) float64 {
		return func(c column) float64 {
			v := 0
			for _, x := range []int{c.ready, c.gone, c.starting, c.pending}[:n] {
				v += x
			}
			return float64(v)
		}
	}
	most := 0.0
	for _, c := range d.cols {
		most = max(most, stack(4)(c))
	}
	p.top = max(roof(most), 4)
	d.frame(p, "GPU workers", plain)
	lower := []point{{plotLeft, p.y1}, {plotRight, p.y1}}
	layers := []struct {
		name string
		col  color.NRGBA
	}{{"ready", blue}, {"draining", amber}, {"starting", sky}, {"without a GPU", silver}}
	for i, l := range layers {
		upper := d.steps(p, stack(i+1))
		d.between(upper, lower, l.col)
		lower = upper
	}
	d.line(d.steps(p, stack(4)), 0.8, faded(ink, 0.5))
	need := d.steps(p, func(c column) float64 {
		return max(float64(d.r.Min), math.Ceil(c.offered/(d.r.PerWorker*d.r.Target)-1e-9))
	})
	d.line(need, 1.3, ink)
	keys := []key{{solid, ink, "needed for the load"}}
	for i := len(layers) - 1; i >= 0; i-- {
		keys = append(keys, key{area, layers[i].col, layers[i].name})
	}
	d.legend(p, keys...)
}

// utilization: offered over capacity, against the target.
func (d *drawing) utilization(p panel) {
	most := 1.0
	for _, c := range d.cols {
		most = max(most, c.utilization())
	}
	p.top = roof(most * 100)
	d.frame(p, "Utilization: offered over capacity (%)", plain)
	full := p.y(100)
	d.rect(plotLeft, p.y0, plotRight, full, faded(crimson, 0.07))
	target := p.y(d.r.Target * 100)
	d.dashed([]point{{plotLeft, target}, {plotRight, target}}, 1.2, 5, 4, teal)
	curve := d.curve(p, func(c column) float64 { return c.utilization() * 100 })
	d.line(curve, 1.3, amber)
	d.legend(p, key{area, faded(crimson, 0.12), "overload"}, key{dashes, teal, fmt.Sprintf("target %.0f %%", d.r.Target*100)}, key{solid, amber, "utilization"})
}
