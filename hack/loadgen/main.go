// Command loadgen sends an open-loop load to a pool and says, tier by tier and second by second, what became
// of it. It ends by itself: the schedule is bounded, and so is the wait for the last answers.
//
//	loadgen --url http://10.96.0.7 --model llm-v1 --phase 100rps:30s,1500rps:60s,100rps:30s \
//	    --tier enterprise=20,key=$ENTERPRISE --tier paid=30,key=$PAID --tier free=50,key=$FREE --give-up 500ms
package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sluice.dev/sluice/hack/loadgen/load"
	"sluice.dev/sluice/internal/worker/backends/simulated"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return
		}
		fmt.Fprintln(os.Stderr, "loadgen:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	var (
		plan    load.Plan
		fs      = flag.NewFlagSet("loadgen", flag.ContinueOnError)
		urls    = fs.String("url", "http://127.0.0.1:8080", "where to send to; several separated by commas are used in turn, all http or all https")
		ca      = fs.String("ca", "", "for https: a file with the certificates (PEM) that the server's must be signed by; default: those that the system trusts")
		api     = fs.String("api", "native", "native, instances ({\"instances\":[...]} -> {\"predictions\":[...]}) or echo (the answer is the request's own body)")
		phases  = fs.String("phase", "100rps:10s", "rates of Poisson arrivals: RATErps:DURATION or, for a ramp, FROM-TOrps:DURATION, separated by commas")
		trace   = fs.String("trace", "", "replay this CSV (TIMESTAMP,ContextTokens,GeneratedTokens) instead of phases")
		speed   = fs.Float64("trace-speed", 1, "replay the trace this many times as fast")
		limit   = fs.Duration("trace-limit", 0, "replay this much of the trace at most, after speeding it up; 0 for all")
		maxIn   = fs.Int("max-input-bytes", 64<<10, "cut the inputs of a trace at this length")
		jsonOut = fs.String("json", "", "write the report as JSON to this file; - for standard output, then the table and the lines go to standard error")
		quiet   = fs.Bool("quiet", false, "no line every second")
		expect  = fs.String("expect", "simulated", "the right output for an input: simulated (itself, cut to max_tokens), echo (itself), upper (ASCII upper case) or digest (SHA-256, 200 times over: hexadecimal)")
	)
	fs.StringVar(&plan.Path, "path", "", "path of the request (default /v1/inference, or /v1/models/MODEL:predict for instances)")
	fs.StringVar(&plan.Model, "model", "local", "model that requests name")
	fs.IntVar(&plan.InputBytes, "input-bytes", 64, "length of an input")
	fs.DurationVar(&plan.GiveUp, "give-up", 0, "clients close the connection this long after they were due; 0 for never")
	fs.Float64Var(&plan.HangUp, "hang-up", 0, "part of the clients, 0 to 1, that hang up at a random time")
	fs.DurationVar(&plan.HangUpWithin, "hang-up-within", 200*time.Millisecond, "the random time is within this")
	fs.DurationVar(&plan.AnswerBound, "answer-bound", 10*time.Second, "without an answer for this long, a request counts as lost")
	fs.DurationVar(&plan.OnTime, "on-time", 500*time.Millisecond, "latency up to which an answer counts as on time")
	fs.DurationVar(&plan.Warmup, "warmup", 0, "leave this much of the start out of the totals")
	fs.IntVar(&plan.Connections, "connections", 0, "connections opened before the run (default: 150 ms of the peak rate)")
	fs.Uint64Var(&plan.Seed, "seed", 1, "seed of every random choice")
	fs.Func("tier", "NAME=WEIGHT[,key=KEY][,header=NAME: VALUE], repeated: a class of clients", func(s string) error {
		t, err := parseTier(s)
		plan.Tiers = append(plan.Tiers, t)
		return err
	})
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	plan.API = load.API(*api)
	switch *expect {
	case "simulated":
		plan.Expect = func(in string, maxTokens int) string {
			if maxTokens == 0 {
				return in
			}
			return simulated.Cut(in, maxTokens)
		}
	case "echo":
	case "upper":
		plan.Expect = func(in string, _ int) string { return upper(in) }
	case "digest":
		plan.Expect = func(in string, _ int) string { return digest(in) }
	default:
		return fmt.Errorf("expect %q: want simulated, echo, upper or digest", *expect)
	}
	if err := target(&plan, *urls, *ca); err != nil {
		return err
	}
	if *trace != "" {
		f, err := os.Open(*trace)
		if err != nil {
			return err
		}
		defer f.Close()
		if plan.Schedule, err = load.Trace(f, *speed, *limit, *maxIn); err != nil {
			return err
		}
	} else {
		ph, err := load.ParsePhases(*phases)
		if err != nil {
			return err
		}
		plan.Schedule = load.Poisson(ph, plan.Seed)
	}
	text := os.Stdout // for people; standard output belongs to the JSON where that goes there
	if *jsonOut == "-" {
		text = os.Stderr
	}
	if !*quiet {
		plan.Progress = func(s load.Second) {
			fmt.Fprintf(text, "%4d s  sent %6d  200 %6d  429 %6d  503 %5d  504 %5d  failed %4d  left %5d  p50 %6.1f  p95 %6.1f  p99 %6.1f ms\n",
				s.T, s.Sent, s.Served, s.Refused, s.Unavailable, s.Expired, s.Failed, s.Left, s.P50Ms, s.P95Ms, s.P99Ms)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	report, err := load.Run(ctx, plan)
	if err != nil {
		return err
	}
	return write(report, *jsonOut, text, *quiet)
}

// write prints the report and fails when an answer was wrong: no latency makes up for that.
func write(report *load.Report, jsonOut string, text io.Writer, quiet bool) error {
	if jsonOut != "" {
		b, err := json.MarshalIndent(report, "", "  ")
		if err != nil {
			return err
		}
		b = append(b, '\n')
		if jsonOut == "-" {
			_, err = os.Stdout.Write(b)
		} else {
			err = os.WriteFile(jsonOut, b, 0o644)
		}
		if err != nil {
			return err
		}
	}
	if jsonOut != "-" || !quiet {
		if err := report.WriteTable(text); err != nil {
			return err
		}
	}
	if report.Wrong > 0 {
		return fmt.Errorf("%d wrong answers", report.Wrong)
	}
	return nil
}

// digestRounds makes a digest cost what a small model would: about 0.1 ms of Python.
const digestRounds = 200

// digest is what test/e2e/testdata/work.py computes.
func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	for range digestRounds - 1 {
		sum = sha256.Sum256(sum[:])
	}
	return hex.EncodeToString(sum[:])
}

func upper(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'a' <= c && c <= 'z' {
			b[i] = c - 'a' + 'A'
		}
	}
	return string(b)
}

// parseTier reads NAME=WEIGHT[,key=KEY][,header=NAME: VALUE].
func parseTier(s string) (load.Tier, error) {
	parts := strings.Split(s, ",")
	name, weight, ok := strings.Cut(parts[0], "=")
	w, err := strconv.ParseFloat(weight, 64)
	if !ok || name == "" || err != nil {
		return load.Tier{}, fmt.Errorf("%q: want NAME=WEIGHT", parts[0])
	}
	t := load.Tier{Name: name, Weight: w}
	for _, p := range parts[1:] {
		what, value, _ := strings.Cut(p, "=")
		switch what {
		case "key":
			t.Key = value
		case "header":
			if !strings.Contains(value, ":") {
				return t, fmt.Errorf("header %q: want NAME: VALUE", value)
			}
			t.Header += value + "\n"
		default:
			return t, fmt.Errorf("%q: want key= or header=", p)
		}
	}
	return t, nil
}

// hostPort returns where to connect for an http URL.
func hostPort(s string) (hostport string, secure bool, err error) {
	u, err := url.Parse(strings.TrimSpace(s))
	if err != nil {
		return "", false, err
	}
	port := u.Port()
	switch {
	case u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https":
		return "", false, fmt.Errorf("url %q: want http://HOST[:PORT] or https://HOST[:PORT]", s)
	case port == "" && u.Scheme == "https":
		port = "443"
	case port == "":
		port = "80"
	}
	return net.JoinHostPort(u.Hostname(), port), u.Scheme == "https", nil
}

// target reads where to send to and, with https, whom to trust there.
func target(plan *load.Plan, urls, ca string) error {
	secure := 0
	for u := range strings.SplitSeq(urls, ",") {
		at, https, err := hostPort(u)
		if err != nil {
			return err
		}
		plan.Targets = append(plan.Targets, at)
		if https {
			secure++
		}
	}
	switch {
	case secure == 0 && ca == "":
		return nil
	case secure != len(plan.Targets):
		return errors.New("url: all must be https, or all http and without ca")
	}
	plan.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	if ca == "" {
		return nil
	}
	pem, err := os.ReadFile(ca)
	if err != nil {
		return fmt.Errorf("ca: %w", err)
	}
	plan.TLS.RootCAs = x509.NewCertPool()
	if !plan.TLS.RootCAs.AppendCertsFromPEM(pem) {
		return fmt.Errorf("ca: %s has no certificate", ca)
	}
	return nil
}
