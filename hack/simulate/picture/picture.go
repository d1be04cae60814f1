// Package picture draws a simulation: what clients asked for and got, what waited and in which zone, and what
// the operator made of it, one below the other on one time axis.
package picture

import (
	"fmt"
	"image/color"
	"io"
	"math"
	"strconv"
	"time"

	"sluice.dev/sluice/hack/simulate/report"
	"sluice.dev/sluice/hack/simulate/sim"
	"sluice.dev/sluice/internal/degrade"
	"sluice.dev/sluice/internal/scaling"
	"sluice.dev/sluice/internal/zone"
)

// The picture, in points. Two pixels a point keep it sharp on a dense screen.
const (
	width, height = 1200, 1070
	pixels        = 2
	plotLeft      = 74.0
	plotRight     = 1040.0 // right of it are the names of what is drawn
	plotTop       = 104.0
	gap           = 40.0
)

var (
	ink     = rgb(0x1f2937)
	muted   = rgb(0x6b7280)
	grid    = rgb(0xe5e7eb)
	blue    = rgb(0x2563eb)
	sky     = rgb(0x93c5fd)
	crimson = rgb(0xdc2626)
	amber   = rgb(0xd97706)
	violet  = rgb(0x7c3aed)
	teal    = rgb(0x0f766e)
	silver  = rgb(0xd1d5db)

	zoneColours = map[zone.Name]color.NRGBA{zone.Green: rgb(0xe3f4ea), zone.Yellow: rgb(0xfde68a), zone.Red: rgb(0xfca5a5)}
)

// Draw writes the picture of r as a PNG.
func Draw(out io.Writer, r *sim.Result, s report.Summary) error {
	c, err := newCanvas(width, height, pixels)
	if err != nil {
		return err
	}
	d := &drawing{canvas: c, r: r, s: s, cols: columns(r, 480)}
	d.heading()
	y := plotTop
	for _, p := range []struct {
		height float64
		draw   func(panel)
	}{{230, d.rates}, {110, d.latency}, {130, d.queue}, {170, d.workers}, {130, d.utilization}} {
		d.panel(y, p.height, p.draw)
		y += p.height + gap
	}
	d.timeAxis(y - gap)
	return c.write(out)
}

// drawing is a picture in the making.
type drawing struct {
	*canvas
	r    *sim.Result
	s    report.Summary
	cols []column
}

// panel is one plot: values from 0 to top over the run.
type panel struct {
	y0, y1 float64 // upper and lower edge
	top    float64
}

func (d *drawing) x(t time.Duration) float64 {
	return plotLeft + (plotRight-plotLeft)*float64(t)/float64(max(d.r.Duration, 1))
}

func (p panel) y(v float64) float64 {
	return p.y1 - (p.y1-p.y0)*min(max(v, 0)/p.top, 1)
}

func (d *drawing) heading() {
	offered, served, instead := 0, 0, 0
	p95 := 0.0
	for _, t := range d.s.Tiers {
		offered += t.Offered
		served += t.Served
		instead += t.Degraded[degrade.StepReroute] + t.Degraded[degrade.StepAnswer]
		p95 = max(p95, t.P95)
	}
	d.text(plotLeft, 40, d.s.Pool, 22, true, left, ink)
	d.text(plotLeft+d.width(d.s.Pool, 22, true)+14, 40, d.s.Load+", "+scaling.Span(d.r.Duration), 14, false, left, muted)
	part := 100.0
	if offered > 0 {
		part = 100 * float64(served) / float64(offered)
	}
	line := fmt.Sprintf("%s requests, %.2f %% served, p95 at most %.0f ms in any tier", grouped(offered), math.Floor(part*100)/100, p95)
	if instead > 0 {
		line = fmt.Sprintf("%s requests, %.2f %% served, %s answered in another way, p95 at most %.0f ms in any tier", grouped(offered), math.Floor(part*100)/100, grouped(instead), p95)
	}
	line += fmt.Sprintf("   ·   %.2f worker-hours", d.s.Cost.Simulated)
	if d.s.Cost.Hindsight > 0 && d.s.Cost.Fixed > 0 {
		line += fmt.Sprintf(": %+.0f %% to the cheapest fleet in hindsight, %+.0f %% to a fixed one of %d", 100*(d.s.Cost.Simulated/d.s.Cost.Hindsight-1), 100*(d.s.Cost.Simulated/d.s.Cost.Fixed-1), d.s.Cost.Peak)
	}
	d.text(plotLeft, 64, line, 13, false, left, ink)
}

// panel draws one plot with what all have in common.
func (d *drawing) panel(y, h float64, draw func(panel)) { draw(panel{y0: y, y1: y + h}) }

// frame draws title and grid. It is called before the data, which lies over the grid.
func (d *drawing) frame(p panel, title string, format func(float64) string) {
	d.text(plotLeft, p.y0-8, title, 12, true, left, ink)
	step := niceStep(p.top, max(2, int((p.y1-p.y0)/38)))
	for v := 0.0; v <= p.top*1.0001; v += step {
		y := p.y(v)
		d.line([]point{{plotLeft, y}, {plotRight, y}}, 0.7, grid)
		d.text(plotLeft-8, y+4, format(v), 11, false, right, muted)
	}
	for _, e := range d.r.Events {
		if e.Kind == "failure" {
			x := d.x(e.At)
			d.dashed([]point{{x, p.y0}, {x, p.y1}}, 1, 4, 3, faded(crimson, 0.7))
		}
	}
}

// key is one entry of a panel's legend.
type key struct {
	mark mark
	col  color.NRGBA
	text string
}

// mark is how an entry shows its colour: as the thing that it explains looks.
type mark int

const (
	area mark = iota
	solid
	dashes
)

// legend explains a panel at its right edge, from the top down in the order in which things lie there.
func (d *drawing) legend(p panel, keys ...key) {
	y := p.y0 + 6
	for _, k := range keys {
		x0, x1 := plotRight+10, plotRight+24
		switch k.mark {
		case area:
			d.rect(x0, y-5, x1-2, y+7, k.col)
		case solid:
			d.line([]point{{x0, y + 1}, {x1, y + 1}}, 1.8, k.col)
		case dashes:
			d.dashed([]point{{x0, y + 1}, {x1, y + 1}}, 1.8, 4, 2, k.col)
		}
		d.text(x1+6, y+5, k.text, 12, false, left, ink)
		y += 18
	}
}

// curve is the outline of a value over the columns.
func (d *drawing) curve(p panel, value func(column) float64) []point {
	ps := make([]point, 0, len(d.cols))
	for _, c := range d.cols {
		ps = append(ps, point{d.x((c.from + c.to) / 2), p.y(value(c))})
	}
	if n := len(ps); n > 0 {
		ps[0].x, ps[n-1].x = plotLeft, plotRight
	}
	return ps
}

// steps is the same for what changes at once.
func (d *drawing) steps(p panel, value func(column) float64) []point {
	var ps []point
	for _, c := range d.cols {
		y := p.y(value(c))
		ps = append(ps, point{d.x(c.from), y}, point{d.x(c.to), y})
	}
	return ps
}

// between fills the area between two outlines.
func (d *drawing) between(upper, lower []point, col color.Color) {
	ps := append([]point(nil), upper...)
	for i := len(lower) - 1; i >= 0; i-- {
		ps = append(ps, lower[i])
	}
	d.polygon(ps, col)
}

func (d *drawing) timeAxis(y float64) {
	step := niceTime(d.r.Duration, 9)
	for t := time.Duration(0); t <= d.r.Duration; t += step {
		x := d.x(t)
		d.line([]point{{x, y}, {x, y + 5}}, 1, muted)
		d.text(x, y+20, clock(t, step), 11, false, middle, muted)
	}
	for _, e := range d.r.Events {
		if e.Kind == "failure" {
			d.text(min(d.x(e.At)+4, plotRight-d.width(e.Text, 10, false)), plotTop-22, e.Text, 10, false, left, crimson)
		}
	}
}

// niceStep is the step of an axis from 0 to top with about n lines: 1, 2 or 5 times a power of ten.
func niceStep(top float64, n int) float64 {
	raw := top / float64(n)
	unit := math.Pow(10, math.Floor(math.Log10(max(raw, 1e-9))))
	for _, m := range []float64{1, 2, 5, 10} {
		if raw <= m*unit*1.0001 {
			return m * unit
		}
	}
	return 10 * unit
}

func niceTime(d time.Duration, n int) time.Duration {
	for _, s := range []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second,
		time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute,
		time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour} {
		if d/s <= time.Duration(n) {
			return s
		}
	}
	return d
}

// clock is m:ss below an hour's axis, h:mm above.
func clock(t, step time.Duration) string {
	if step < time.Minute {
		return fmt.Sprintf("%d:%02d", t/time.Minute, t%time.Minute/time.Second)
	}
	if t < time.Hour {
		return fmt.Sprintf("%d min", t/time.Minute)
	}
	return fmt.Sprintf("%d h %02d", t/time.Hour, t%time.Hour/time.Minute)
}

func grouped(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
