// Package rendezvous is the one hashing function of Sluice (highest random weight): request -> batcher,
// batcher -> preferred workers, tenant -> bucket owner. Everyone who knows the same names agrees on the
// same order without talking; a name that leaves moves only what it owned.
package rendezvous

import (
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// Score returns the weight of node for key. The node with the largest weight owns the key.
func Score(key, node string) uint64 {
	return mix(xxhash.Sum64String(key), xxhash.Sum64String(node))
}

// mix combines two hashes; the finalizer is that of MurmurHash3, so that every bit of both reaches every
// bit of the result (an XOR alone would give every key the same order up to a mask).
func mix(a, b uint64) uint64 {
	h := a ^ (b * 0x9e3779b97f4a7c15)
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	h ^= h >> 33
	return h
}

// Pick returns the index of the node that owns key, or -1 when there is none. It does not allocate.
func Pick(key string, nodes []string) int {
	best, owner := uint64(0), -1
	k := xxhash.Sum64String(key)
	for i, n := range nodes {
		s := mix(k, xxhash.Sum64String(n))
		if owner < 0 || s > best || (s == best && n < nodes[owner]) {
			best, owner = s, i
		}
	}
	return owner
}

// Order returns the indexes of nodes in key's order of preference: the owner first, then who would own the
// key if those before were gone.
func Order(key string, nodes []string) []int {
	k := xxhash.Sum64String(key)
	score := make([]uint64, len(nodes))
	order := make([]int, len(nodes))
	for i, n := range nodes {
		score[i], order[i] = mix(k, xxhash.Sum64String(n)), i
	}
	slices.SortFunc(order, func(a, b int) int {
		switch {
		case score[a] > score[b]:
			return -1
		case score[a] < score[b]:
			return 1
		}
		return strings.Compare(nodes[a], nodes[b])
	})
	return order
}
