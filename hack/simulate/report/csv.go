package report

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"sluice.dev/sluice/hack/simulate/sim"
)

// JSON writes the summary as JSON.
func (s Summary) JSON(out io.Writer) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(s)
}

// CSV writes the time series, one row a bin. Rates are per second over the bin, the rest is at its end.
func CSV(out io.Writer, r *sim.Result) error {
	w := csv.NewWriter(out)
	head := []string{"seconds", "offered_per_second", "served_per_second", "shed_per_second", "p50_ms", "p95_ms", "queue_depth", "zone",
		"workers_ready", "workers_starting", "workers_pending", "workers_draining", "batchers", "capacity_per_second", "utilization"}
	for _, t := range r.Tiers {
		head = append(head, t.Name+"_offered_per_second", t.Name+"_served_per_second", t.Name+"_shed_per_second")
		if t.Laddered {
			for _, step := range sim.Steps {
				head = append(head, t.Name+"_"+step+"_per_second")
			}
		}
	}
	if err := w.Write(head); err != nil {
		return err
	}
	var last time.Duration
	for _, b := range r.Bins {
		d := (b.At - last).Seconds()
		last = b.At
		rate := func(n int) string { return strconv.FormatFloat(round(float64(n)/d, 2), 'f', -1, 64) }
		ms := func(d time.Duration) string {
			return strconv.FormatFloat(round(d.Seconds()*1000, 1), 'f', -1, 64)
		}
		utilization := ""
		if b.Capacity > 0 {
			utilization = fmt.Sprintf("%.3f", float64(b.Offered)/d/b.Capacity)
		}
		row := []string{strconv.FormatFloat(b.At.Seconds(), 'f', -1, 64), rate(b.Offered), rate(b.Served), rate(b.Shed), ms(b.P50), ms(b.P95), strconv.Itoa(b.Depth), string(b.Zone),
			strconv.Itoa(b.Ready), strconv.Itoa(b.Starting), strconv.Itoa(b.Pending), strconv.Itoa(b.Gone), strconv.Itoa(b.Batchers), fmt.Sprintf("%.1f", b.Capacity), utilization}
		for i, t := range b.ByTier {
			row = append(row, rate(t.Offered), rate(t.Served), rate(t.Shed))
			if r.Tiers[i].Laddered {
				for _, n := range t.Degraded {
					row = append(row, rate(n))
				}
			}
		}
		if err := w.Write(row); err != nil {
			return err
		}
	}
	w.Flush()
	return w.Error()
}
