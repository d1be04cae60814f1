package controller

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"sluice.dev/sluice/api/v1alpha1"
)

// How far a number may be from the one in the status before it is worth a write. Rounding alone does not keep
// a steady pool quiet: a load that happens to lie where 64 becomes 65 would be written every 10 s for ever,
// and so would every queue, which is never twice the same. Measured at 200 steady pools with 3 % of noise:
// 20 writes a second without these.
const (
	noisePart    = 0.1                   // of a rate or a service time: noise of 5 % to both sides
	noisePoints  = 5.0                   // of a utilization: one step of its rounding
	noiseFill    = 10.0                  // points of fill and busy time
	noiseBacklog = 50 * time.Millisecond // a sixth of the default threshold of Yellow
)

// noise says that two statuses differ by nothing but small changes of numbers, in fields or in messages.
func noise(shown, next *v1alpha1.InferencePoolStatus) bool {
	n := next.DeepCopy()
	if near(shown.OfferedPerSecond, n.OfferedPerSecond, noisePart, 0) {
		n.OfferedPerSecond = shown.OfferedPerSecond
	}
	if near(shown.CapacityPerSecond, n.CapacityPerSecond, noisePart, 0) {
		n.CapacityPerSecond = shown.CapacityPerSecond
	}
	if near(shown.ServiceTime.Duration, n.ServiceTime.Duration, noisePart, float64(5*time.Millisecond)) {
		n.ServiceTime = shown.ServiceTime
	}
	if near(shown.BusyPercent, n.BusyPercent, 0, noiseFill) {
		n.BusyPercent = shown.BusyPercent
	}
	if near(shown.FillPercent, n.FillPercent, 0, noiseFill) {
		n.FillPercent = shown.FillPercent
	}
	if a, b := points(shown.Utilization), points(n.Utilization); a >= 0 && b >= 0 && near(a, b, 0, noisePoints) {
		n.Utilization = shown.Utilization
	}
	// An idle pool's queue is 0, not nearly 0.
	idle := n.Queue.Depth == 0 && n.OfferedPerSecond == 0
	if !idle && near(shown.Queue.Backlog.Duration, n.Queue.Backlog.Duration, noisePart, float64(noiseBacklog)) {
		n.Queue = shown.Queue
	}
	if alike(shown.Zone.Message, n.Zone.Message) {
		n.Zone.Message = shown.Zone.Message
	}
	for i := range n.Conditions {
		for _, c := range shown.Conditions {
			if c.Type == n.Conditions[i].Type && alike(c.Message, n.Conditions[i].Message) {
				n.Conditions[i].Message = c.Message
			}
		}
	}
	return equality.Semantic.DeepEqual(shown, n)
}

// near says that two numbers differ by at most a part of the larger one plus an amount.
func near[T ~int32 | ~int64 | ~float64](a, b T, part, amount float64) bool {
	x, y := float64(a), float64(b)
	return math.Abs(x-y) <= part*max(x, y)+amount
}

// points reads a utilization as the status has it, -1 where it is not known.
func points(utilization string) float64 {
	v, err := strconv.ParseFloat(strings.TrimSuffix(utilization, "%"), 64)
	if err != nil {
		return -1
	}
	return v
}

// measurement is a measured number in a message. Numbers without these units are counts and parts of names,
// which are never noise.
var measurement = regexp.MustCompile(`(\d+(?:\.\d+)?)(/s| %| ms)`)

// alike says that two messages differ by nothing but small changes of measured numbers.
func alike(a, b string) bool {
	if a == b {
		return true
	}
	if measurement.ReplaceAllString(a, "#$2") != measurement.ReplaceAllString(b, "#$2") {
		return false
	}
	as, bs := measurement.FindAllStringSubmatch(a, -1), measurement.FindAllStringSubmatch(b, -1)
	for i := range as {
		x, _ := strconv.ParseFloat(as[i][1], 64)
		y, _ := strconv.ParseFloat(bs[i][1], 64)
		part, amount := noisePart, 0.0
		switch as[i][2] {
		case " %":
			part, amount = 0, noisePoints
		case " ms":
			amount = float64(noiseBacklog / time.Millisecond)
		}
		if !near(x, y, part, amount) {
			return false
		}
	}
	return true
}
