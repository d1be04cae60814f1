package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
)

// figures are those of a fleet of one size. Of repeated measurements the worst counts; the medians stand
// beside them.
type figures struct {
	Pools          int                `json:"pools"`
	SteadySeconds  float64            `json:"steady_s"`
	SteadyWrites   float64            `json:"steady_writes"` // all writing requests but for Leases
	SteadyBy       map[string]float64 `json:"steady_writes_by,omitempty"`
	ReconcilesPerS float64            `json:"reconciles_per_s"`
	CPUPercent     float64            `json:"cpu_percent"` // of one core, steady
	RSSMB          float64            `json:"rss_mb"`      // VmRSS, at the end of the steady time

	NewPoolMs       float64 `json:"new_pool_applied_ms"`
	NewPoolMedianMs float64 `json:"new_pool_applied_median_ms"`
	QueueMs         float64 `json:"queue_to_patch_ms"`
	QueueMedianMs   float64 `json:"queue_to_patch_median_ms"`
	RedMs           float64 `json:"red_to_watcher_ms"`
	RedMedianMs     float64 `json:"red_to_watcher_median_ms"`
}

// failoverFigures are those of the change of leader, at the smaller size.
type failoverFigures struct {
	KillToLeaseMs         float64 `json:"failover_kill_to_lease_ms"`
	FirstDecisionMs       float64 `json:"failover_first_decision_ms"` // after the Lease
	ScaleDownInsideWindow int     `json:"failover_scale_down_inside_window"`
	ScaleDownAfterS       float64 `json:"failover_scale_down_after_s"`
}

// result is the file.
type result struct {
	DecideMicros float64 `json:"decide_us"`
	figures
	failoverFigures
	UpgradeTemplateChanges int      `json:"upgrade_template_changes"`
	ErrorsLogged           int      `json:"errors_logged"` // lines of level ERROR of all operators
	Big                    *figures `json:"pools_1000,omitempty"`
	Missed                 []string `json:"missed"`
}

// row is one line of the table.
type row struct {
	name   string
	value  float64
	target string // empty for none
	missed bool
	big    *float64
}

func (r *result) rows() []row {
	below := func(name string, v, limit float64, unit string) row {
		return row{name: name, value: v, target: fmt.Sprintf("< %g %s", limit, unit), missed: v >= limit}
	}
	atMost := func(name string, v, limit float64, unit string) row {
		return row{name: name, value: v, target: fmt.Sprintf("<= %g %s", limit, unit), missed: v > limit}
	}
	rows := []row{
		below("decide_us", r.DecideMicros, 5, "us"),
		{name: "pools", value: float64(r.Pools)},
		atMost("steady_writes", r.SteadyWrites, 0, ""),
		{name: "reconciles_per_s", value: r.ReconcilesPerS},
		{name: "cpu_percent", value: r.CPUPercent},
		atMost("rss_mb", r.RSSMB, 128, "MiB"),
		below("new_pool_applied_ms", r.NewPoolMs, 1000, "ms"),
		atMost("queue_to_patch_ms", r.QueueMs, 5000, "ms"),
		atMost("red_to_watcher_ms", r.RedMs, 1000, "ms"),
		{name: "failover_kill_to_lease_ms", value: r.KillToLeaseMs},
		// A rate needs two scrapes, so the first decision comes one tick of 2 s after the first scrape; the
		// other second is for the start of the controllers and the patch itself.
		atMost("failover_first_decision_ms", r.FirstDecisionMs, 3000, "ms"),
		atMost("failover_scale_down_inside_window", float64(r.ScaleDownInsideWindow), 0, ""),
		{name: "failover_scale_down_after_s", value: r.ScaleDownAfterS},
		atMost("upgrade_template_changes", float64(r.UpgradeTemplateChanges), 0, ""),
		atMost("errors_logged", float64(r.ErrorsLogged), 0, ""),
	}
	if b := r.Big; b != nil {
		pools := float64(b.Pools)
		beside := map[string]*float64{
			"pools": &pools, "steady_writes": &b.SteadyWrites, "reconciles_per_s": &b.ReconcilesPerS, "cpu_percent": &b.CPUPercent,
			"rss_mb": &b.RSSMB, "new_pool_applied_ms": &b.NewPoolMs, "queue_to_patch_ms": &b.QueueMs, "red_to_watcher_ms": &b.RedMs,
		}
		for i := range rows {
			rows[i].big = beside[rows[i].name]
		}
	}
	return rows
}

// judge fills Missed.
func (r *result) judge() {
	r.Missed = []string{}
	for _, row := range r.rows() {
		if row.missed {
			r.Missed = append(r.Missed, row.name)
		}
	}
}

func (r *result) table(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 2, 0, 2, ' ', 0)
	big := ""
	if r.Big != nil {
		big = fmt.Sprintf("at %d pools", r.Big.Pools)
	}
	fmt.Fprintf(tw, "figure\tmeasured\ttarget\t\t%s\n", big)
	for _, row := range r.rows() {
		verdict, beside := "", ""
		switch {
		case row.missed:
			verdict = "MISSED"
		case row.target != "":
			verdict = "reached"
		}
		if row.big != nil {
			beside = number(*row.big)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", row.name, number(row.value), row.target, verdict, beside)
	}
	return tw.Flush()
}

func number(v float64) string {
	switch {
	case v == float64(int(v)):
		return fmt.Sprintf("%.0f", v)
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.1f", v)
}

// write judges the figures and writes the file.
func (r *result) write(file string) error {
	r.judge()
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}
