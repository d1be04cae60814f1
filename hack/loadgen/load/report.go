package load

import (
	"fmt"
	"io"
	"math"
	"slices"
	"sort"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// Report is what a run found. Counts and latencies leave the warm-up out, except Wrong and Lost, which are of
// the whole run. Latencies are of right answers, in milliseconds from the scheduled time.
type Report struct {
	Seconds   float64 `json:"seconds"` // of the schedule, less the warm-up
	Scheduled uint64  `json:"scheduled"`

	Totals
	// ShedP50Ms and ShedP99Ms are of 429 answers.
	ShedP50Ms float64 `json:"shed_p50_ms"`
	ShedP99Ms float64 `json:"shed_p99_ms"`

	// LateP99Ms says how late the generator itself wrote requests. It is part of every latency: where it is
	// not small, the generator or the machine was the bottleneck.
	LateP99Ms float64 `json:"late_p99_ms"`
	// ClientCPUMicros is the CPU of this process for each request, in microseconds.
	ClientCPUMicros float64 `json:"client_cpu_us_per_request"`
	// WithoutRetryAfter counts 429 and 503 answers that do not say when to come again.
	WithoutRetryAfter uint64 `json:"without_retry_after"`

	Tiers []TierReport `json:"tiers"`
}

// Totals are the outcomes of a set of requests.
type Totals struct {
	Sent         uint64  `json:"sent"`
	Served       uint64  `json:"served"`
	Wrong        uint64  `json:"wrong_answers"`
	Lost         uint64  `json:"lost"`
	Refused      uint64  `json:"refused_429"`
	Unavailable  uint64  `json:"unavailable_503"`
	Expired      uint64  `json:"expired_504"`
	Other        uint64  `json:"other_status"`
	NoConnection uint64  `json:"no_connection"`
	GaveUp       uint64  `json:"gave_up"`
	HungUp       uint64  `json:"hung_up"`
	OnTimePct    float64 `json:"on_time_pct"` // served within the on-time bound, of all but those that hung up
	P50Ms        float64 `json:"p50_ms"`
	P95Ms        float64 `json:"p95_ms"`
	P99Ms        float64 `json:"p99_ms"`
	MaxMs        float64 `json:"max_ms"`
}

// Errors counts what a client did not want and was not told to retry: everything but right answers, 429 and
// its own leaving.
func (t Totals) Errors() uint64 {
	return t.Wrong + t.Lost + t.Unavailable + t.Expired + t.Other + t.NoConnection
}

// TierReport is one tier's part.
type TierReport struct {
	Name          string  `json:"name"`
	OfferedPerSec float64 `json:"offered_per_s"`
	GoodputPerSec float64 `json:"goodput_per_s"`
	Totals
	// Reasons counts every answer but 200 by "status reason", and what ended without an answer by "client: why".
	Reasons map[string]uint64 `json:"reasons"`
	// PerSecond has every second of the run, by scheduled time, warm-up included.
	PerSecond []Second `json:"per_second"`
}

// Second is what became of the requests that were due within one second.
type Second struct {
	T           int     `json:"t"` // seconds from the start
	Sent        uint64  `json:"sent"`
	Served      uint64  `json:"ok_200"`
	Refused     uint64  `json:"refused_429"`
	Unavailable uint64  `json:"unavailable_503"`
	Expired     uint64  `json:"expired_504"`
	Failed      uint64  `json:"failed"` // wrong, lost, not connected, other status
	Left        uint64  `json:"left"`   // gave up or hung up
	P50Ms       float64 `json:"p50_ms"`
	P95Ms       float64 `json:"p95_ms"`
	P99Ms       float64 `json:"p99_ms"`
}

func ms(d time.Duration) float64 {
	return math.Round(float64(d)/float64(time.Millisecond)*100) / 100
}

// cpuTime is the CPU that this process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func (s *second) summary(t int) Second {
	out := Second{T: t, Sent: s.sent, Served: s.outcomes[Served], Refused: s.outcomes[Refused], Unavailable: s.outcomes[Unavailable],
		Expired: s.outcomes[Expired], Left: s.outcomes[GaveUp] + s.outcomes[HungUp]}
	out.Failed = s.outcomes[Wrong] + s.outcomes[Lost] + s.outcomes[NoConnection] + s.outcomes[OtherStatus]
	if s.served != nil {
		out.P50Ms, out.P95Ms, out.P99Ms = ms(s.served.quantile(.5)), ms(s.served.quantile(.95)), ms(s.served.quantile(.99))
	}
	return out
}

func totals(o [outcomes]uint64, sent, onTime uint64, served *histogram) Totals {
	t := Totals{Sent: sent, Served: o[Served], Wrong: o[Wrong], Lost: o[Lost], Refused: o[Refused], Unavailable: o[Unavailable],
		Expired: o[Expired], Other: o[OtherStatus], NoConnection: o[NoConnection], GaveUp: o[GaveUp], HungUp: o[HungUp],
		P50Ms: ms(served.quantile(.5)), P95Ms: ms(served.quantile(.95)), P99Ms: ms(served.quantile(.99)), MaxMs: ms(served.quantile(1))}
	if wanted := sent - o[HungUp]; wanted > 0 {
		t.OnTimePct = math.Round(float64(onTime)/float64(wanted)*1e5) / 1e3
	}
	return t
}

// report sums up. No call is on its way any more.
func (r *run) report(scheduled uint64, cpu time.Duration) *Report {
	rep := &Report{Scheduled: scheduled, Seconds: (r.plan.Schedule.Length() - r.plan.Warmup).Seconds(),
		LateP99Ms: ms(r.late.quantile(.99)), WithoutRetryAfter: r.bare}
	if scheduled > 0 {
		rep.ClientCPUMicros = math.Round(float64(cpu.Microseconds())/float64(scheduled)*10) / 10
	}
	var all [outcomes]uint64
	var sent, onTime uint64
	served, shed := newHistogram(totalPrecision), newHistogram(totalPrecision)
	for i, t := range r.tiers {
		for o, n := range t.outcomes {
			all[o] += n
		}
		sent += t.sent
		onTime += t.onTime
		served.merge(t.served)
		shed.merge(t.shed)
		tr := TierReport{Name: r.plan.Tiers[i].Name, Reasons: t.reasons, Totals: totals(t.outcomes, t.sent, t.onTime, t.served)}
		if rep.Seconds > 0 {
			tr.OfferedPerSec = math.Round(float64(t.sent)/rep.Seconds*10) / 10
			tr.GoodputPerSec = math.Round(float64(t.outcomes[Served])/rep.Seconds*10) / 10
		}
		for n := range t.seconds {
			tr.PerSecond = append(tr.PerSecond, t.seconds[n].summary(n))
		}
		rep.Tiers = append(rep.Tiers, tr)
	}
	rep.Totals = totals(all, sent, onTime, served)
	rep.ShedP50Ms, rep.ShedP99Ms = ms(shed.quantile(.5)), ms(shed.quantile(.99))
	return rep
}

// progress reports every second on the second before the last one, whose requests have mostly ended.
func (r *run) progress(stop <-chan struct{}) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		n := int(time.Since(r.began)/time.Second) - 2
		if n < 0 {
			continue
		}
		var sum second
		sum.served = newHistogram(secondPrecision)
		for _, t := range r.tiers {
			t.mu.Lock()
			if n < len(t.seconds) {
				s := &t.seconds[n]
				sum.sent += s.sent
				for o, k := range s.outcomes {
					sum.outcomes[o] += k
				}
				if s.served != nil {
					sum.served.merge(s.served)
				}
			}
			t.mu.Unlock()
		}
		r.plan.Progress(sum.summary(n))
	}
}

// WriteTable writes the report for a person.
func (rep *Report) WriteTable(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 2, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "tier\toffered/s\tgoodput/s\tp50 ms\tp95 ms\tp99 ms\ton time %\t200\t429\t503\t504\tgave up\thung up\twrong\tlost\t")
	row := func(name string, offered, goodput float64, t Totals) {
		fmt.Fprintf(tw, "%s\t%.0f\t%.0f\t%.1f\t%.1f\t%.1f\t%.2f\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t\n", name, offered, goodput, t.P50Ms, t.P95Ms, t.P99Ms,
			t.OnTimePct, t.Served, t.Refused, t.Unavailable, t.Expired, t.GaveUp, t.HungUp, t.Wrong, t.Lost)
	}
	var offered, goodput float64
	for _, t := range rep.Tiers {
		row(t.Name, t.OfferedPerSec, t.GoodputPerSec, t.Totals)
		offered += t.OfferedPerSec
		goodput += t.GoodputPerSec
	}
	if len(rep.Tiers) > 1 {
		row("all", offered, goodput, rep.Totals)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, t := range rep.Tiers {
		if len(t.Reasons) == 0 {
			continue
		}
		var parts []string
		for why, n := range t.Reasons {
			parts = append(parts, fmt.Sprintf("%s %d", why, n))
		}
		sort.Strings(parts)
		fmt.Fprintf(w, "%s: %s\n", t.Name, strings.Join(slices.Compact(parts), ", "))
	}
	_, err := fmt.Fprintf(w, "shed p99 %.1f ms; without Retry-After %d; generator late p99 %.2f ms, %.1f us CPU a request\n",
		rep.ShedP99Ms, rep.WithoutRetryAfter, rep.LateP99Ms, rep.ClientCPUMicros)
	return err
}
