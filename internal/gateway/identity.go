package gateway

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/quota"
)

// caller is who asks, as far as the rest of the pipeline may know.
type caller struct {
	tenant string // "" for everybody under auth None; never leaves the gateway
	tier   int    // index into the pool's tiers, -1 while unknown
	flow   string // opaque, see flowKey
	limits quota.Limits
}

// maxKeyBytes bounds what is hashed for a key. Keys are 32 random bytes in some encoding.
const maxKeyBytes = 512

// identity finds the caller of a request in one of the three ways that a pool may choose.
type identity struct {
	mode         string
	pool         string
	tiers        map[string]int
	defaultTier  int
	trusted      []netip.Prefix
	tenantHeader string
	tierHeader   string
	tenants      *Tenants
}

func newIdentity(p poolspec.Pool, tenants *Tenants) (*identity, error) {
	id := &identity{
		mode: p.Gateway.Auth, pool: p.Name, tiers: map[string]int{}, defaultTier: len(p.Tiers) - 1,
		tenantHeader: p.Gateway.TenantHeader, tierHeader: p.Gateway.TierHeader, tenants: tenants,
	}
	for i, t := range p.Tiers {
		id.tiers[t.Name] = i
	}
	switch id.mode {
	case "Keys":
	case "None":
		if p.Gateway.DefaultTier != "" {
			i, ok := id.tiers[p.Gateway.DefaultTier]
			if !ok {
				return nil, fmt.Errorf("gateway.defaultTier %q is none of the pool's tiers", p.Gateway.DefaultTier)
			}
			id.defaultTier = i
		}
	case "TrustedHeaders":
		for _, c := range p.Gateway.TrustedCIDRs {
			prefix, err := netip.ParsePrefix(c)
			if err != nil {
				return nil, fmt.Errorf("gateway.trustedCIDRs: %w", err)
			}
			id.trusted = append(id.trusted, prefix.Masked())
		}
		if len(id.trusted) == 0 {
			return nil, fmt.Errorf("gateway.trustedCIDRs is empty: nobody could call")
		}
		if id.tenantHeader == "" {
			id.tenantHeader = "Sluice-Tenant"
		}
		if id.tierHeader == "" {
			id.tierHeader = "Sluice-Tier"
		}
	default:
		return nil, fmt.Errorf("gateway.auth is %q, want Keys, TrustedHeaders or None", id.mode)
	}
	return id, nil
}

// identify is the second step of the pipeline. Headers that state a tenant or a tier mean nothing unless the
// pool says TrustedHeaders and the connection itself (not a forwarding header) comes from a trusted address.
func (g *Gateway) identify(x *exchange) *refusal {
	var r *refusal
	switch g.identity.mode {
	case "Keys":
		r = g.identity.byKey(x)
	case "TrustedHeaders":
		r = g.identity.byHeaders(x)
	default:
		x.caller = caller{tier: g.identity.defaultTier, flow: g.anonymousFlow}
	}
	if r != nil && r.reason == ReasonUnknownTier {
		g.strays.add(x.arrival, x.caller.tenant)
	}
	return r
}

func (id *identity) byKey(x *exchange) *refusal {
	key := presentedKey(x.r.Header)
	if key == "" {
		return refuse(ReasonMissingKey, "send the tenant's key as \"Authorization: Bearer KEY\" or \"X-API-Key: KEY\"")
	}
	if len(key) > maxKeyBytes {
		return refuse(ReasonWrongKey, "the key is longer than %d bytes", maxKeyBytes)
	}
	e, ok := id.tenants.byKey(key)
	if !ok {
		return refuse(ReasonWrongKey, "no InferenceTenant of this namespace has the key's hash; it may have been revoked")
	}
	if !e.notAfter.IsZero() && !x.wall.Before(e.notAfter) {
		return refuse(ReasonExpiredKey, "the key was valid until %s", e.notAfter.UTC().Format("2006-01-02T15:04:05Z"))
	}
	return id.admit(x, e.tenant.Name, e.tenant.Tier, e.tenant.Limits)
}

func (id *identity) byHeaders(x *exchange) *refusal {
	peer, err := netip.ParseAddrPort(x.r.RemoteAddr)
	if err != nil || !id.trusts(peer.Addr().Unmap()) {
		return refuse(ReasonUntrusted, "the pool believes tenant headers only from the addresses in gateway.trustedHeaders.fromCIDRs")
	}
	tenant := x.r.Header.Get(id.tenantHeader)
	if tenant == "" {
		return refuse(ReasonMissingTenant, "the header %s is missing", id.tenantHeader)
	}
	if !validToken(tenant, 128) {
		return &refusal{reason: ReasonInvalidHeader, param: id.tenantHeader, detail: "the tenant must have 1 to 128 characters out of A-Z a-z 0-9 . _ : / @ -"}
	}
	tier := x.r.Header.Get(id.tierHeader)
	var limits quota.Limits
	if known := id.tenants.byName(tenant); known != nil {
		limits = known.Limits
		if tier == "" {
			tier = known.Tier
		}
	}
	return id.admit(x, tenant, tier, limits)
}

func (id *identity) trusts(a netip.Addr) bool {
	for _, p := range id.trusted {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

func (id *identity) admit(x *exchange, tenant, tier string, limits quota.Limits) *refusal {
	x.caller = caller{tenant: tenant, tier: -1, flow: flowKey(id.pool, tenant), limits: limits}
	i, ok := id.tiers[tier]
	if !ok {
		if len(tier) > 32 {
			tier = tier[:32] + "..."
		}
		return refuse(ReasonUnknownTier, "the tenant's tier %q is none of the pool's", tier)
	}
	x.caller.tier = i
	return nil
}

// presentedKey returns the key of a request, "" when there is none.
func presentedKey(h http.Header) string {
	if scheme, key, ok := strings.Cut(h.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(key)
	}
	return strings.TrimSpace(h.Get("X-API-Key"))
}

// validToken says whether s may be used as a name in logs and headers.
func validToken(s string, maxLen int) bool {
	if s == "" || len(s) > maxLen {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '.', c == '_', c == ':', c == '/', c == '@', c == '-':
		default:
			return false
		}
	}
	return true
}
