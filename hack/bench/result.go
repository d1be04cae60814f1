package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// result is what one scenario measured. The JSON names are fixed: other tools read bin/bench.json.
type result struct {
	P50Ms         float64 `json:"p50_ms"`
	P95Ms         float64 `json:"p95_ms"`
	P99Ms         float64 `json:"p99_ms"`
	LimitP95Ms    float64 `json:"limit_p95_ms"`
	GoodputPerSec float64 `json:"goodput_per_s"`  // right answers that a client still waited for
	CapacityPerS  float64 `json:"capacity_per_s"` // M·B / (S + g)
	WastedPct     float64 `json:"wasted_items_pct"`
	FillPct       float64 `json:"fill_pct"` // mean batch / B
	BusyPct       float64 `json:"busy_pct"` // of the workers' time
	UtilPct       float64 `json:"util_pct"` // offered / capacity
	CPUMicros     float64 `json:"cpu_us_per_request"`
	FloorMicros   float64 `json:"floor_cpu_us_per_request"` // 0: not measured (too few requests)
	RSSMB         float64 `json:"rss_mb"`
	// ParkedFloorMicros is the floor of a bare handler that waits 100 ms first.
	ParkedFloorMicros float64 `json:"parked_floor_cpu_us_per_request"`
	ShedP99Ms         float64 `json:"shed_p99_ms"`
	Errors            float64 `json:"errors"` // 503, 504, any other status, no connection, wrong, lost
	Wrong             float64 `json:"wrong_answers"`
	Lost              float64 `json:"lost"`

	OfferedPerSec     float64 `json:"offered_per_s"`
	Shed              float64 `json:"shed"` // 429
	LateP99Ms         float64 `json:"generator_late_p99_ms"`
	ClientCPUMicros   float64 `json:"generator_cpu_us_per_request"`
	WithoutRetryAfter float64 `json:"without_retry_after"`

	Tiers map[string]tierResult `json:"tiers"`

	// Ratios that the targets speak of.
	Derived map[string]float64 `json:"derived"`
	// Reasons of every answer that was not 200, all tiers.
	Reasons map[string]uint64 `json:"reasons,omitempty"`
	// Missed are the targets that were not reached, in words.
	Missed []string `json:"missed,omitempty"`
}

// tierResult is one tier's part.
type tierResult struct {
	OfferedPerSec float64 `json:"offered_per_s"`
	GoodputPerSec float64 `json:"goodput_per_s"`
	OnTimePct     float64 `json:"on_time_pct"`
	P95Ms         float64 `json:"p95_ms"`
	Entitled      float64 `json:"entitled_per_s"` // min(its load, what higher tiers leave), after floors
}

// figures lists every figure by its JSON name, so that medians and targets need no second list.
func (r *result) figures() map[string]*float64 {
	return map[string]*float64{
		"p50_ms": &r.P50Ms, "p95_ms": &r.P95Ms, "p99_ms": &r.P99Ms, "limit_p95_ms": &r.LimitP95Ms,
		"goodput_per_s": &r.GoodputPerSec, "capacity_per_s": &r.CapacityPerS, "wasted_items_pct": &r.WastedPct,
		"fill_pct": &r.FillPct, "busy_pct": &r.BusyPct, "util_pct": &r.UtilPct, "cpu_us_per_request": &r.CPUMicros,
		"floor_cpu_us_per_request": &r.FloorMicros, "parked_floor_cpu_us_per_request": &r.ParkedFloorMicros, "rss_mb": &r.RSSMB, "shed_p99_ms": &r.ShedP99Ms, "errors": &r.Errors,
		"wrong_answers": &r.Wrong, "lost": &r.Lost, "offered_per_s": &r.OfferedPerSec, "shed": &r.Shed,
		"generator_late_p99_ms": &r.LateP99Ms, "generator_cpu_us_per_request": &r.ClientCPUMicros, "without_retry_after": &r.WithoutRetryAfter,
	}
}

func (r *result) figure(name string) (float64, bool) {
	if p, ok := r.figures()[name]; ok {
		return *p, true
	}
	v, ok := r.Derived[name]
	return v, ok
}

// bound is one target.
type bound struct {
	figure string
	least  bool
	value  float64
}

func atMost(figure string, v float64) bound  { return bound{figure: figure, value: v} }
func atLeast(figure string, v float64) bound { return bound{figure: figure, least: true, value: v} }

// missed says in words which targets a result does not reach.
func missed(r *result, targets []bound) (out []string) {
	for _, b := range targets {
		v, ok := r.figure(b.figure)
		switch {
		case !ok:
			out = append(out, b.figure+" was not measured")
		case b.least && v < b.value:
			out = append(out, fmt.Sprintf("%s %.4g < %.4g", b.figure, v, b.value))
		case !b.least && v > b.value:
			out = append(out, fmt.Sprintf("%s %.4g > %.4g", b.figure, v, b.value))
		}
	}
	return out
}

// median returns the figure-by-figure median of several runs of a scenario, but the worst of what must not
// happen once: wrong and lost answers.
func median(runs []*result) *result {
	out := *runs[0]
	for name, p := range out.figures() {
		var vs []float64
		for _, r := range runs {
			vs = append(vs, *r.figures()[name])
		}
		*p = middle(vs)
		if name == "wrong_answers" || name == "lost" {
			*p = slices.Max(vs)
		}
	}
	out.Derived = map[string]float64{}
	for name := range runs[0].Derived {
		var vs []float64
		for _, r := range runs {
			vs = append(vs, r.Derived[name])
		}
		out.Derived[name] = middle(vs)
	}
	out.Tiers = map[string]tierResult{}
	for name := range runs[0].Tiers {
		var o, g, t, p, e []float64
		for _, r := range runs {
			x := r.Tiers[name]
			o, g, t, p, e = append(o, x.OfferedPerSec), append(g, x.GoodputPerSec), append(t, x.OnTimePct), append(p, x.P95Ms), append(e, x.Entitled)
		}
		out.Tiers[name] = tierResult{OfferedPerSec: middle(o), GoodputPerSec: middle(g), OnTimePct: middle(t), P95Ms: middle(p), Entitled: middle(e)}
	}
	out.Reasons = map[string]uint64{}
	for _, r := range runs {
		for why, n := range r.Reasons {
			out.Reasons[why] += n
		}
	}
	return &out
}

func middle(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func round(v float64, digits int) float64 {
	p := math.Pow(10, float64(digits))
	return math.Round(v*p) / p
}

// writeTable prints one line for each scenario, figures that have a limit beside it.
func writeTable(w io.Writer, names []string, results map[string]*result) error {
	tw := tabwriter.NewWriter(w, 2, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "scenario\toffered/s\tgoodput/s\tcapacity/s\tp50\tp95\tlimit\tp99 ms\twasted %\tfill %\tbusy %\tutil %\tCPU us\tfloor\tparked\tRSS MB\tshed p99\terrors\twrong\tlost\tlate p99\t")
	for _, n := range names {
		r := results[n]
		fmt.Fprintf(tw, "%s\t%.0f\t%.0f\t%.0f\t%.1f\t%.1f\t%.1f\t%.1f\t%.2f\t%.0f\t%.0f\t%.0f\t%.1f\t%.1f\t%.1f\t%.0f\t%.1f\t%.0f\t%.0f\t%.0f\t%.1f\t\n", n,
			r.OfferedPerSec, r.GoodputPerSec, r.CapacityPerS, r.P50Ms, r.P95Ms, r.LimitP95Ms, r.P99Ms, r.WastedPct, r.FillPct, r.BusyPct, r.UtilPct,
			r.CPUMicros, r.FloorMicros, r.ParkedFloorMicros, r.RSSMB, r.ShedP99Ms, r.Errors, r.Wrong, r.Lost, r.LateP99Ms)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	tw = tabwriter.NewWriter(w, 2, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "\ntier\toffered/s\tgoodput/s\tentitled/s\ton time %\tp95 ms\t")
	for _, n := range names {
		if len(results[n].Tiers) < 2 {
			continue
		}
		for _, t := range mixed {
			x := results[n].Tiers[t.Name]
			fmt.Fprintf(tw, "%s %s\t%.0f\t%.0f\t%.0f\t%.2f\t%.1f\t\n", n, t.Name, x.OfferedPerSec, x.GoodputPerSec, x.Entitled, x.OnTimePct, x.P95Ms)
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, n := range names {
		verdict := "reached"
		if m := results[n].Missed; len(m) > 0 {
			verdict = "MISSED " + strings.Join(m, "; ")
		}
		fmt.Fprintf(w, "%-11s %s%s\n", n, verdict, reasonsOf(results[n]))
	}
	return nil
}

func reasonsOf(r *result) string {
	var parts []string
	for why, n := range r.Reasons {
		parts = append(parts, fmt.Sprintf("%s: %d", why, n))
	}
	slices.SortFunc(parts, cmp.Compare[string])
	if len(parts) == 0 {
		return ""
	}
	return "  (" + strings.Join(parts, ", ") + ")"
}
