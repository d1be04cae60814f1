package rendezvous

import (
	"fmt"
	"slices"
	"testing"
)

func nodes(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("10.0.0.%d:9000", i)
	}
	return out
}

func TestOrderIsAPermutationThatBeginsWithTheOwner(t *testing.T) {
	ns := nodes(13)
	for k := range 200 {
		key := fmt.Sprint("key", k)
		order := Order(key, ns)
		if order[0] != Pick(key, ns) {
			t.Fatalf("%s: order begins with %d, the owner is %d", key, order[0], Pick(key, ns))
		}
		sorted := slices.Sorted(slices.Values(order))
		for i, x := range sorted {
			if x != i {
				t.Fatalf("%s: %v is no permutation", key, order)
			}
		}
	}
}

func TestTheOrderOfTheListDoesNotMatter(t *testing.T) {
	ns := nodes(7)
	reversed := slices.Clone(ns)
	slices.Reverse(reversed)
	for k := range 200 {
		key := fmt.Sprint("key", k)
		if a, b := ns[Pick(key, ns)], reversed[Pick(key, reversed)]; a != b {
			t.Fatalf("%s is owned by %s or %s", key, a, b)
		}
	}
}

func TestANodeThatLeavesMovesOnlyWhatItOwned(t *testing.T) {
	ns := nodes(10)
	fewer := ns[:9]
	for k := range 2000 {
		key := fmt.Sprint("key", k)
		was, is := ns[Pick(key, ns)], fewer[Pick(key, fewer)]
		if was != ns[9] && was != is {
			t.Fatalf("%s moved from %s to %s though %s stayed", key, was, is, was)
		}
		if was == ns[9] && is != ns[Order(key, ns)[1]] {
			t.Fatalf("%s moved to %s, not to the second in its order", key, is)
		}
	}
}

func TestEveryNodeOwnsItsShare(t *testing.T) {
	ns := nodes(10)
	owned := make([]int, len(ns))
	const keys = 20000
	for k := range keys {
		owned[Pick(fmt.Sprint("req-", k), ns)]++
	}
	for i, n := range owned {
		// 2,000 expected, standard deviation 42: five of them.
		if n < keys/10-5*42 || n > keys/10+5*42 {
			t.Errorf("%s owns %d of %d", ns[i], n, keys)
		}
	}
}

func TestNoNodesMeansNoOwner(t *testing.T) {
	if Pick("x", nil) != -1 || len(Order("x", nil)) != 0 {
		t.Fatal("an owner among none")
	}
}

func TestPickDoesNotAllocate(t *testing.T) {
	ns := nodes(16)
	if n := testing.AllocsPerRun(100, func() { Pick("some-request-id", ns) }); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func BenchmarkPick(b *testing.B) {
	ns := nodes(8)
	for b.Loop() {
		Pick("0123456789abcdef", ns)
	}
}
