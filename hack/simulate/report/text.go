package report

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"sluice.dev/sluice/hack/simulate/sim"
	"sluice.dev/sluice/internal/degrade"
)

// Text writes the summary for people. A price a worker-hour of 0 leaves money out.
func (s Summary) Text(out io.Writer, price float64) error {
	p := &printer{out: out}
	p.line("Pool %s under %s", s.Pool, s.Load)
	p.line("%s requests in %s: %s/s on average, %s/s at the peak", number(s.Requests), span(s.DurationSeconds), number(int(s.MeanPerSecond)), number(int(s.PeakPerSecond)))
	p.line("")
	s.tiers(p)
	s.degraded(p)
	p.line("")
	w := s.Workers
	p.line("workers      %d at first, %d to %d ready (%.1f on average); used %.0f %%, busy %.0f %%, %.0f requests a batch", w.First, w.Least, w.Most, w.MeanReady, w.UtilizationPercent, w.BusyPercent, w.MeanBatch)
	p.line("cost         %s", s.cost(price))
	z := s.Zones
	p.line("zones        Green %.1f %%, Yellow %.1f %%, Red %.1f %% of the time; %s, %s written", z.GreenPercent, z.YellowPercent, z.RedPercent, plural(z.Changes, "change"), plural(z.Documents, "document"))
	if s.LostWithBatcher > 0 {
		p.line("lost         %s waited at a batcher that died", plural(s.LostWithBatcher, "request"))
	}
	for _, n := range s.Notes {
		p.line("note         %s", n)
	}
	p.line("")
	s.decisions(p)
	return p.err
}

func (s Summary) tiers(p *printer) {
	tab := tabwriter.NewWriter(p, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tab, "tier\toffered\tserved\tp50\tp95\tp99\ttarget\tlate\tshed\twhy\t")
	for _, t := range s.Tiers {
		shed := 0
		var why []string
		for _, m := range []map[string]int{t.Refused, t.Failed} {
			for _, reason := range sorted(m) {
				shed += m[reason]
				why = append(why, fmt.Sprintf("%s %s", reason, number(m[reason])))
			}
		}
		if why == nil {
			why = []string{"-"}
		}
		fmt.Fprintf(tab, "%s\t%s\t%s\t%.0f ms\t%.0f ms\t%.0f ms\t%.0f ms\t%.2f %%\t%s\t%s\t\n", t.Name, number(t.Offered), number(t.Served), t.P50, t.P95, t.P99, t.TargetMs, t.LatePercent, number(shed), strings.Join(why, ", "))
	}
	_ = tab.Flush() // p keeps the error
}

// meaning is what a step of a ladder did, for people.
var meaning = map[string]string{
	degrade.StepMaxTokens: "served with fewer tokens", degrade.StepParameter: "served with a parameter switched",
	degrade.StepReroute: "answered by another pool", degrade.StepAnswer: "got the static answer",
}

// degraded says what ladders did, a line for each tier that has one.
func (s Summary) degraded(p *printer) {
	for _, t := range s.Tiers {
		if t.Degraded == nil {
			continue
		}
		var did []string
		for _, step := range sim.Steps {
			if n := t.Degraded[step]; n > 0 {
				did = append(did, fmt.Sprintf("%s %s (%s)", number(n), meaning[step], step))
			}
		}
		if did == nil {
			did = []string{"nothing"}
		}
		p.line("  %s was degraded: %s", t.Name, strings.Join(did, ", "))
	}
}

func (s Summary) cost(price float64) string {
	c := s.Cost
	money := func(hours float64) string {
		if price <= 0 {
			return ""
		}
		return fmt.Sprintf(" ($%.2f)", hours*price)
	}
	text := fmt.Sprintf("%.2f worker-hours%s", c.Simulated, money(c.Simulated))
	if c.Hindsight > 0 {
		text += fmt.Sprintf("; the cheapest fleet in hindsight %.2f%s: %+.0f %%", c.Hindsight, money(c.Hindsight), 100*(c.Simulated/c.Hindsight-1))
	}
	if c.Fixed > 0 {
		text += fmt.Sprintf("; a fixed fleet of %d %.2f%s: %+.0f %%", c.Peak, c.Fixed, money(c.Fixed), 100*(c.Simulated/c.Fixed-1))
	}
	return text
}

// decisions lists changes and events in the order of time.
func (s Summary) decisions(p *printer) {
	p.line("decisions")
	changes, events := s.Changes, s.Events
	for len(changes) > 0 || len(events) > 0 {
		if len(events) == 0 || len(changes) > 0 && changes[0].AtSeconds < events[0].AtSeconds {
			c := changes[0]
			changes = changes[1:]
			p.line("  %s  %-9s %-16s %s", clock(c.AtSeconds), c.What, c.Reason, c.Message)
			continue
		}
		e := events[0]
		events = events[1:]
		p.line("  %s  %-9s %s", clock(e.AtSeconds), e.Kind, e.Text)
	}
	if len(s.Changes)+len(s.Events) == 0 {
		p.line("  none")
	}
	total := 0
	for _, n := range s.Holds {
		total += n
	}
	var held []string
	for _, reason := range sorted(s.Holds) {
		held = append(held, fmt.Sprintf("%s %.0f %%", reason, 100*float64(s.Holds[reason])/float64(total)))
	}
	p.line("otherwise    %s", strings.Join(held, ", "))
}

// printer keeps the first error of many writes.
type printer struct {
	out io.Writer
	err error
}

func (p *printer) Write(b []byte) (int, error) {
	if p.err != nil {
		return 0, p.err
	}
	n, err := p.out.Write(b)
	p.err = err
	return n, err
}

func (p *printer) line(format string, args ...any) {
	_, _ = fmt.Fprintf(p, format+"\n", args...) // p keeps the error
}

// number groups thousands.
func number(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return number(n) + " " + noun + "s"
}

func span(seconds float64) string { return time.Duration(seconds * float64(time.Second)).String() }

// clock is h:mm:ss.
func clock(seconds float64) string {
	s := int(seconds)
	return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
}
