package sim

import (
	"maps"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/degrade"
)

// laddered is a pool of two workers (1,818/s) whose tier free has a ladder.
func laddered(yellow, red string) string {
	if red != "" {
		red = ", red: [" + red + "]"
	}
	return `  workers: {maxReplicas: 2}
  tiers:
  - {name: paid}
  - {name: free, shedding: First, degrade: {yellow: [` + yellow + `]` + red + `}}
`
}

// steps is what a tier's ladder did, by name.
func steps(x *TierResult) map[string]int {
	m := map[string]int{}
	for i, n := range x.Degraded {
		m[Steps[i]] = n
	}
	return m
}

// Under 1.4x, requests of free are made cheaper in Yellow; what the zone and the batchers would refuse is handed
// to another pool or answered. The pool itself serves and refuses as much as without a ladder.
func TestLadder(t *testing.T) {
	run := func(yellow, red string, opt Options) (paid, free *TierResult) {
		r := simulate(t, laddered(yellow, red), "step,from=1000,to=2600,at=20s", "paid=1,free=1", 3*time.Minute, opt)
		return &r.Tiers[0], &r.Tiers[1]
	}
	_, plain := run("{answer: later}", "", Options{})
	if plain.Degraded.Instead() < 50_000 || len(plain.Refused) > 0 || steps(plain)[degrade.StepMaxTokens] > 0 {
		t.Fatalf("a static answer: %v, refused %v", steps(plain), plain.Refused)
	}
	whole := "{maxTokens: 50}, {parameter: {name: rerank, value: 'false'}}, {reroute: {pool: small, model: s}}, {answer: later}"
	paid, free := run(whole, "", Options{RerouteFailsPercent: 25})
	did := steps(free)
	if paid.Degraded != (StepCounts{}) {
		t.Errorf("paid has no ladder, and %v", steps(paid))
	}
	if count(free.Refused)+count(free.Failed) > free.Offered/1000 {
		t.Errorf("refused %v, failed %v although a static answer always helps", free.Refused, free.Failed)
	}
	if part := float64(did[degrade.StepAnswer]) / float64(free.Degraded.Instead()); part < 0.24 || part > 0.26 {
		t.Errorf("%v: %.3f of those that were not served got the static answer, want the quarter that the other pool did not answer", did, part)
	}
	// Answers are 200 tokens on average, exponentially: 1 - exp(-50/200) = 22 % stay under the cap. Served ones
	// from second 24 or so on were switched all, and capped where longer; of the rerouted ones only the cap went along.
	if n := did[degrade.StepParameter]; n < free.Served*6/10 || n > free.Served {
		t.Errorf("%d of %d served had the parameter", n, free.Served)
	}
	if n, most := did[degrade.StepMaxTokens], did[degrade.StepParameter]+did[degrade.StepReroute]; n < most*75/100 || n > most*81/100 {
		t.Errorf("%d of %d were capped, want 78 %%", n, most)
	}
	// What the ladder answers is demand all the same, and cheaper requests take as long: nothing else changes.
	if d := free.Served - plain.Served; d > plain.Served/50 || d < -plain.Served/50 {
		t.Errorf("%d served, %d with another ladder", free.Served, plain.Served)
	}
	// Where the other pool always fails and nothing else is left, the refusal stands with its own reason.
	if _, x := run("{reroute: {pool: small, model: s}}", "", Options{RerouteFailsPercent: 100}); x.Degraded.Instead() > 0 || x.Refused["shed"] < 50_000 {
		t.Errorf("%v, refused %v", steps(x), x.Refused)
	}
}

// Yellow's ladder is not Red's.
func TestLadderOfEachZone(t *testing.T) {
	for load, want := range map[string]string{"paid=1,free=3": degrade.StepReroute, "paid=9,free=1": degrade.StepAnswer} { // paid alone over the capacity is Red
		r := simulate(t, laddered("{reroute: {pool: small, model: s}}", "{answer: later}"), "steady,rate=2600", load, 3*time.Minute, Options{})
		did := steps(&r.Tiers[1])
		if did[want] < 9*r.Tiers[1].Degraded.Instead()/10 || did[want] < 20_000 {
			t.Errorf("%s: %v, want %s; zones %v", load, did, want, r.ZoneTime)
		}
	}
}

// A capped answer is charged for what it used: a tenant with a limit on tokens gets more requests in.
func TestCapGoesEasyOnTokenLimits(t *testing.T) {
	run := func(ladder string) int {
		spec := laddered(ladder, "") + `---
apiVersion: inference.sluice.dev/v1alpha1
kind: InferenceTenant
metadata: {name: acme}
spec: {tier: free, limits: {tokensPerMinute: 24000000}}
`
		r := simulate(t, spec, "steady,rate=2600", "paid=2,free=3", 4*time.Minute, Options{})
		return r.Tiers[1].Refused["quota_tokens"]
	}
	whole, capped := run("{parameter: {name: a, value: b}}"), run("{maxTokens: 1}")
	if whole == 0 || capped >= whole*95/100 {
		t.Errorf("%d refused by the limit on tokens, with capped answers %d", whole, capped)
	}
}

func TestWhatIsNotSimulatedIsSaid(t *testing.T) {
	if r := simulate(t, "", "steady,rate=10", "", 10*time.Second, Options{}); len(r.Notes) > 0 {
		t.Errorf("a plain pool: %q", r.Notes)
	}
	r := simulate(t, `  gateway: {replicas: 2}
  workers: {backend: {simulated: {serviceTime: 300ms, crashPermille: 5}}}
  tiers: [{name: free, degrade: {red: [{reroute: {pool: small, model: s}}]}}]
---
apiVersion: inference.sluice.dev/v1alpha1
kind: InferenceTenant
metadata: {name: acme}
spec: {tier: gold, limits: {requestsPerMinute: 120}}
`, "steady,rate=10", "", 10*time.Second, Options{RerouteFailsPercent: 10})
	all := strings.Join(r.Notes, "\n")
	for _, want := range []string{"gateway.replicas is 2", "pool small: they leave the simulation, and 90 % of them", "tenant acme is of tier gold", "serviceTime is 300ms", "crash by chance"} {
		if !strings.Contains(all, want) {
			t.Errorf("nothing says %q:\n%s", want, all)
		}
	}
}

// A gateway whose operator has been silent for 10 s goes by its own view alone where the pool says so.
func TestStaleZone(t *testing.T) {
	run := func(policy string) map[string]int {
		f, err := ParseFailure("operator,at=30s,for=90s")
		if err != nil {
			t.Fatal(err)
		}
		// Over the capacity until the operator goes, and then well under it: the last document still sheds.
		r := simulate(t, "  workers: {maxReplicas: 2}\n  zones: {whenStale: "+policy+"}\n", "step,from=4000,to=900,at=32s", "", 110*time.Second, Options{Failures: []Failure{f}})
		late := map[string]int{}
		for _, b := range r.Bins {
			if b.At > time.Minute {
				late["shed"] += b.Shed
				late["offered"] += b.Offered
			}
		}
		return late
	}
	keep, own := run("KeepStricter"), run("OwnView")
	if keep["shed"] < keep["offered"]/10 || own["shed"] > 0 {
		t.Errorf("KeepStricter sheds %v, OwnView %v", keep, maps.Clone(own))
	}
}
