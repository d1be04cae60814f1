package controller

import (
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/fleet"
)

func TestPoisonedInputsAreTold(t *testing.T) {
	events := &recorded{}
	r := &InferencePoolReconciler{Events: events}
	pool := &v1alpha1.InferencePool{}
	m := &memory{}
	now := time.Unix(1e9, 0)
	look := func(complete bool, reports ...fleet.Poison) []string {
		events.events = nil
		now = now.Add(2 * time.Second)
		seen := &observed{now: now, load: fleet.Load{Complete: complete}}
		for _, p := range reports {
			seen.load.Batchers = append(seen.load.Batchers, fleet.Batcher{Poison: p})
		}
		r.checkPoison(pool, seen, m)
		return events.events
	}
	poison := func(start string, n uint64) fleet.Poison {
		return fleet.Poison{Start: start, Count: n, Latest: "ValueError: not a number"}
	}

	look(true) // nothing scraped yet
	if got := look(true, poison("a", 7)); len(got) != 0 {
		t.Errorf("an operator that just started tells of the past: %v", got)
	}
	got := look(true, poison("a", 8))
	if len(got) != 1 || !strings.HasPrefix(got[0], EventPoisoned+": 1 request was answered 422") || !strings.Contains(got[0], "ValueError: not a number") {
		t.Fatalf("the first poison: %v", got)
	}
	if got = look(true, poison("a", 9), poison("b", 2)); len(got) != 0 {
		t.Errorf("two events within %v: %v", poisonQuiet, got)
	}
	if got = look(false, poison("b", 2)); len(got) != 0 { // a is silent for a moment
		t.Errorf("%v", got)
	}
	now = now.Add(poisonQuiet)
	if got = look(true, poison("a", 9), poison("b", 2)); len(got) != 1 || !strings.Contains(got[0], "3 requests were") {
		t.Errorf("what came meanwhile: %v, want one event of 3", got)
	}
	now = now.Add(poisonQuiet)
	if got = look(true, poison("a", 9), poison("b", 2)); len(got) != 0 {
		t.Errorf("nothing new: %v", got)
	}
}
