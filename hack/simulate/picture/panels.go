package picture

import (
	"fmt"
	"math"
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
	offered := d.curve(p, func(c column) float64 { return c.offered })
	d.between(served, floor, faded(blue, 0.28))
	d.between(offered, served, faded(crimson, 0.55))
	d.line(offered, 1.3, ink)
	capacity := d.steps(p, func(c column) float64 { return c.capacity })
	d.dashed(capacity, 1.4, 7, 4, teal)
	last := d.cols[len(d.cols)-1]
	d.names(p,
		label{p.y(last.capacity), "capacity", 0x0f766e},
		label{p.y(last.offered), "offered", 0x1f2937},
		label{p.y(last.served) + 12, "served", 0x2563eb},
		label{p.y(last.served) + 27, "not served", 0xdc2626},
	)
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
	d.frame(p, "Latency, p95 of each second (ms)", plain)
	d.line(d.curve(p, func(c column) float64 { return c.p95.Seconds() * 1000 }), 1.3, violet)
	y := p.y(target.Seconds() * 1000)
	d.dashed([]point{{plotLeft, y}, {plotRight, y}}, 1.2, 5, 4, crimson)
	d.names(p, label{y, "target", 0xdc2626}, label{p.y(d.cols[len(d.cols)-1].p95.Seconds() * 1000), "p95", 0x7c3aed})
}

// queue: how many wait, over the colour of the zone.
func (d *drawing) queue(p panel) {
	most := 0.0
	seen := map[zone.Name]bool{}
	for _, c := range d.cols {
		most = max(most, float64(c.depth))
		seen[c.zone] = true
	}
	p.top = roof(most)
	for i := 0; i < len(d.cols); {
		j := i
		for j+1 < len(d.cols) && d.cols[j+1].zone == d.cols[i].zone {
			j++
		}
		d.rect(d.x(d.cols[i].from), p.y0, d.x(d.cols[j].to), p.y1, rgb(zoneColours[d.cols[i].zone].band))
		i = j + 1
	}
	d.frame(p, "Queue depth, and the zone", plain)
	floor := []point{{plotLeft, p.y1}, {plotRight, p.y1}}
	depth := d.curve(p, func(c column) float64 { return float64(c.depth) })
	d.between(depth, floor, faded(ink, 0.35))
	d.line(depth, 1, ink)
	y := p.y0 + 6
	for _, n := range []zone.Name{zone.Green, zone.Yellow, zone.Red} {
		share := map[zone.Name]float64{zone.Green: d.s.Zones.GreenPercent, zone.Yellow: d.s.Zones.YellowPercent, zone.Red: d.s.Zones.RedPercent}[n]
		d.rect(plotRight+10, y-5, plotRight+22, y+7, rgb(zoneColours[n].band))
		d.text(plotRight+28, y+5, fmt.Sprintf("%s %.1f %%", n, share), 12, false, left, rgb(zoneColours[n].name))
		y += 18
	}
}

// workers: stacked by what they do, and how many the load would have needed in hindsight.
func (d *drawing) workers(p panel) {
	stack := func(n int) func(column) float64 {
		return func(c column) float64 {
			v := 0.0
			for _, x := range []float64{c.ready, c.gone, c.starting, c.pending}[:n] {
				v += x
			}
			return v
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
		col  uint32
	}{{"ready", 0x2563eb}, {"draining", 0xd97706}, {"starting", 0x93c5fd}, {"without a GPU", 0xd1d5db}}
	for i, l := range layers {
		upper := d.steps(p, stack(i+1))
		d.between(upper, lower, rgb(l.col))
		lower = upper
	}
	d.line(d.steps(p, stack(4)), 0.8, faded(ink, 0.5))
	need := d.steps(p, func(c column) float64 {
		return max(float64(d.r.Min), math.Ceil(c.offered/(d.r.PerWorker*d.r.Target)-1e-9))
	})
	d.line(need, 1.3, ink)
	y := p.y0 + 6
	for i := len(layers) - 1; i >= 0; i-- {
		d.rect(plotRight+10, y-5, plotRight+22, y+7, rgb(layers[i].col))
		d.text(plotRight+28, y+5, layers[i].name, 12, false, left, ink)
		y += 18
	}
	d.line([]point{{plotRight + 10, y + 1}, {plotRight + 22, y + 1}}, 1.6, ink)
	d.text(plotRight+28, y+5, "needed for the load", 12, false, left, ink)
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
	d.names(p,
		label{p.y0 + (full-p.y0)/2 - 4, "overload", 0xdc2626},
		label{target, fmt.Sprintf("target %.0f %%", d.r.Target*100), 0x0f766e},
		label{curve[len(curve)-1].y, "utilization", 0xd97706})
}
