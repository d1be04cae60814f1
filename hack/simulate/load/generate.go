package load

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Shapes are the generators and their settings, for the usage text.
const Shapes = `steady,rate=1000
ramp,from=100,to=1000[,at=10m,for=20m]         (the whole time when at and for are left out)
step,from=300,to=900,at=10m
spike,base=300,peak=1500,at=10m,for=2m
diurnal,mean=600,swing=80[,period=24h]         (swing in percent of the mean; begins at the trough)`

// settings are the parts of a generator, "name=value".
type settings struct {
	values map[string]string
	err    error
}

func (s *settings) rate(name string) float64 {
	v, err := strconv.ParseFloat(s.take(name, ""), 64)
	if s.err == nil && (err != nil || !(v >= 0) || math.IsInf(v, 1)) {
		s.err = fmt.Errorf("%s must be a number of at least 0", name)
	}
	return v
}

func (s *settings) span(name, otherwise string) time.Duration {
	v, err := time.ParseDuration(s.take(name, otherwise))
	if s.err == nil && (err != nil || v < 0) {
		s.err = fmt.Errorf("%s must be a duration such as 10m", name)
	}
	return v
}

func (s *settings) take(name, otherwise string) string {
	v, ok := s.values[name]
	delete(s.values, name)
	if !ok {
		v = otherwise
	}
	if v == "" && s.err == nil {
		s.err = fmt.Errorf("%s is missing", name)
	}
	return v
}

// Generate makes Poisson arrivals along a shape: see Shapes.
func Generate(shape string, duration time.Duration, seed uint64) (Load, error) {
	l := Load{Name: shape, Duration: duration}
	rate, most, err := parseShape(shape, duration)
	if err != nil {
		return l, err
	}
	r := rand.New(rand.NewPCG(seed, 0x67656e))
	// Thinning: arrivals of the highest rate, each kept with the chance that its instant's rate has of it.
	for at := 0.0; most > 0; {
		at += r.ExpFloat64() / most
		t := time.Duration(at * float64(time.Second))
		if t >= duration {
			break
		}
		if r.Float64()*most < rate(t) {
			l.Requests = append(l.Requests, Request{At: t, Prompt: tokens(r, 1000), Answer: tokens(r, 200)})
		}
	}
	return l, nil
}

// tokens draws a length: exponential, so that a few are many times the mean, as in the recorded traces.
func tokens(r *rand.Rand, mean float64) int32 {
	return int32(1 + min(r.ExpFloat64()*mean, 16*mean))
}

func parseShape(shape string, duration time.Duration) (rate func(time.Duration) float64, most float64, err error) {
	name, rest, _ := strings.Cut(shape, ",")
	s := settings{values: map[string]string{}}
	for part := range strings.SplitSeq(rest, ",") {
		if part != "" {
			k, v, _ := strings.Cut(part, "=")
			s.values[strings.TrimSpace(k)] = strings.TrimSpace(v)
		}
	}
	switch name {
	case "steady":
		most = s.rate("rate")
		rate = func(time.Duration) float64 { return most }
	case "ramp":
		from, to := s.rate("from"), s.rate("to")
		at, during := s.span("at", "0s"), s.span("for", duration.String())
		most = max(from, to)
		rate = func(t time.Duration) float64 {
			part := min(max(float64(t-at)/float64(max(during, 1)), 0), 1)
			return from + part*(to-from)
		}
	case "step":
		from, to, at := s.rate("from"), s.rate("to"), s.span("at", "")
		most = max(from, to)
		rate = func(t time.Duration) float64 {
			if t < at {
				return from
			}
			return to
		}
	case "spike":
		base, peak, at, during := s.rate("base"), s.rate("peak"), s.span("at", ""), s.span("for", "")
		most = max(base, peak)
		rate = func(t time.Duration) float64 {
			if t >= at && t < at+during {
				return peak
			}
			return base
		}
	case "diurnal":
		mean, swing, period := s.rate("mean"), s.rate("swing")/100, s.span("period", "24h")
		most = mean * (1 + swing)
		rate = func(t time.Duration) float64 {
			return max(0, mean*(1-swing*math.Cos(2*math.Pi*t.Seconds()/max(period.Seconds(), 1))))
		}
	default:
		return nil, 0, fmt.Errorf("load %q: want one of\n%s", shape, Shapes)
	}
	if s.err == nil && len(s.values) > 0 {
		s.err = fmt.Errorf("unknown setting %s", strings.Join(slices.Sorted(maps.Keys(s.values)), ", "))
	}
	if s.err != nil {
		return nil, 0, fmt.Errorf("load %q: %w", shape, s.err)
	}
	return rate, most, nil
}
