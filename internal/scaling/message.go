package scaling

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Messages end up in the pool's status, and a message that differs is a write. So numbers in them are
// rounded: utilization to 5 points, rates to two digits, running timers to 10 s (or a minute, where the
// window is longer than five).

// Span writes a duration as people do: 40 ms, 2.5 s, 2 min, 1 h 5 min.
func Span(d time.Duration) string {
	switch {
	case d >= MaxBacklog && d%time.Hour == 0:
		return fmt.Sprintf("%d h", d/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute && d%time.Minute < time.Second:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
	case d >= 10*time.Second || d%time.Second == 0:
		return fmt.Sprintf("%d s", d/time.Second)
	case d >= time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return fmt.Sprintf("%d ms", d.Milliseconds())
}

// elapsed is how much of a window is over, in steps.
func elapsed(d, window time.Duration) string {
	step := 10 * time.Second
	switch {
	case window > 5*time.Minute:
		step = time.Minute
	case window < time.Minute:
		step = time.Second
	}
	return Span(min(d, window).Truncate(step))
}

func percentOf(f figures) string {
	u := f.utilization()
	if u < 0 {
		return "utilization unknown"
	}
	return "utilization " + percent(u)
}

// percent rounds to 5 points.
func percent(u float64) string {
	if math.IsInf(u, 1) || u > 1e6 {
		return "more than any load can be carried"
	}
	return fmt.Sprintf("%.0f %%", math.Round(u*20)*5)
}

// perSecond rounds a rate to two digits.
func perSecond(rate float64) string {
	if rate <= 0 {
		return "0/s"
	}
	unit := math.Pow(10, max(math.Floor(math.Log10(rate))-1, 0))
	if rate < 10 {
		return fmt.Sprintf("%.1f/s", rate)
	}
	return fmt.Sprintf("%.0f/s", math.Round(rate/unit)*unit)
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func isAre(n int, noun string) string {
	if n == 1 {
		return "1 " + noun + " is"
	}
	return fmt.Sprintf("%d %ss are", n, noun)
}

func enough(f figures) string {
	return count(f.supply, "worker") + " are enough"
}

func minimum(p Policy, f figures) string {
	if f.warm > p.Min {
		return fmt.Sprintf("%s kept warm", count(f.warm, "worker"))
	}
	return fmt.Sprintf("minReplicas %d", p.Min)
}

// missing names who does not report, the first three of them.
func missing(o Observation) string {
	if len(o.Missing) == 0 {
		return ""
	}
	names := o.Missing
	more := ""
	if len(names) > 3 {
		more = fmt.Sprintf(" and %d more", len(names)-3)
		names = names[:3]
	}
	return ": no report of " + strings.Join(names, ", ") + more
}
