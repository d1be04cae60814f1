package gateway

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/internal/quota"
)

// Tenant is who may call: what an InferenceTenant says.
type Tenant struct {
	Name   string
	Tier   string
	Keys   []Key
	Limits quota.Limits
}

// Key is the SHA-256 of a tenant's key. The key itself is nowhere.
type Key struct {
	SHA256   [sha256.Size]byte
	NotAfter time.Time // zero: for ever
}

// Tenants is the directory of tenants. Lookups are one hash and one map read, whatever the number of tenants
// and of wrong keys; a wrong key leaves no trace. Safe for concurrent use.
type Tenants struct {
	index atomic.Pointer[tenantIndex]
}

type tenantIndex struct {
	byKey  map[[sha256.Size]byte]keyEntry
	byName map[string]*Tenant
}

type keyEntry struct {
	tenant   *Tenant
	notAfter time.Time
}

// Set replaces the directory. Where two tenants have the same key it belongs to the earlier in the list.
func (t *Tenants) Set(list []Tenant) {
	ix := &tenantIndex{byKey: make(map[[sha256.Size]byte]keyEntry, len(list)), byName: make(map[string]*Tenant, len(list))}
	for i := range list {
		x := &list[i]
		ix.byName[x.Name] = x
		for _, k := range x.Keys {
			if _, taken := ix.byKey[k.SHA256]; !taken {
				ix.byKey[k.SHA256] = keyEntry{tenant: x, notAfter: k.NotAfter}
			}
		}
	}
	t.index.Store(ix)
}

func (t *Tenants) byKey(key string) (keyEntry, bool) {
	ix := t.index.Load()
	if ix == nil {
		return keyEntry{}, false
	}
	e, ok := ix.byKey[sha256.Sum256([]byte(key))]
	return e, ok
}

func (t *Tenants) byName(name string) *Tenant {
	ix := t.index.Load()
	if ix == nil {
		return nil
	}
	return ix.byName[name]
}

// flowKey is the opaque name under which a tenant's requests are queued: behind the gateway nothing says who
// asked. Every gateway of a pool computes the same.
func flowKey(pool, tenant string) string {
	var text [192]byte // on the stack, as names are at most 63 and 128 bytes
	sum := sha256.Sum256(append(append(append(text[:0], pool...), 0), tenant...))
	var key [16]byte
	hex.Encode(key[:], sum[:8])
	return string(key[:])
}

// Bounds of the list of tenants whose tier the pool lacks: enough for a person to see the mistake, never a
// way to fill the memory.
const (
	strayMax  = 32
	strayLife = 5 * time.Minute
)

// strays remembers the tenants that were refused because the pool lacks their tier.
type strays struct {
	mu   sync.Mutex
	seen map[string]time.Time
}

func (s *strays) add(now time.Time, tenant string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = map[string]time.Time{}
	}
	if _, known := s.seen[tenant]; !known && len(s.seen) >= strayMax {
		return
	}
	s.seen[tenant] = now
}

// list returns the names seen within strayLife, sorted.
func (s *strays) list(now time.Time) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for name, at := range s.seen {
		if now.Sub(at) > strayLife {
			delete(s.seen, name)
			continue
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// tenantFile is one entry of a tenants file, for a pool outside Kubernetes.
type tenantFile struct {
	Name   string   `json:"name"`
	Tier   string   `json:"tier"`
	Keys   []string `json:"keys"`
	Limits struct {
		RequestsPerMinute int64 `json:"requestsPerMinute"`
		TokensPerMinute   int64 `json:"tokensPerMinute"`
	} `json:"limits"`
}

// DecodeTenants reads a list of tenants: what InferenceTenants say, outside Kubernetes. Keys are hexadecimal
// SHA-256 hashes.
func DecodeTenants(doc []byte) ([]Tenant, error) {
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.DisallowUnknownFields()
	var list []tenantFile
	if err := dec.Decode(&list); err != nil {
		return nil, err
	}
	var out []Tenant
	for i, f := range list {
		if f.Name == "" || f.Tier == "" || f.Limits.RequestsPerMinute < 0 || f.Limits.TokensPerMinute < 0 {
			return nil, fmt.Errorf("[%d]: name and tier are required, limits are not negative", i)
		}
		t := Tenant{Name: f.Name, Tier: f.Tier, Limits: quota.Limits{RequestsPerMinute: f.Limits.RequestsPerMinute, TokensPerMinute: f.Limits.TokensPerMinute}}
		for j, k := range f.Keys {
			sum, err := hex.DecodeString(k)
			if err != nil || len(sum) != sha256.Size {
				return nil, fmt.Errorf("[%d].keys[%d]: want 64 hexadecimal digits, the SHA-256 of a key", i, j)
			}
			t.Keys = append(t.Keys, Key{SHA256: [sha256.Size]byte(sum)})
		}
		out = append(out, t)
	}
	return out, nil
}
