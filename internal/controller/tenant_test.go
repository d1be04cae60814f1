package controller

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/api/v1alpha1"
)

func TestTenantsAreAcceptedWhereAPoolHasTheirTier(t *testing.T) {
	tenant := func(name, tier string, keys ...string) v1alpha1.InferenceTenant {
		t := v1alpha1.InferenceTenant{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.InferenceTenantSpec{Tier: tier}}
		for _, k := range keys {
			t.Spec.Keys = append(t.Spec.Keys, v1alpha1.TenantKey{SHA256: strings.Repeat(k, 64)})
		}
		return t
	}
	pool := func(name string, tiers ...string) v1alpha1.InferencePool {
		p := v1alpha1.InferencePool{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, n := range tiers {
			p.Spec.Tiers = append(p.Spec.Tiers, v1alpha1.Tier{Name: n})
		}
		return p
	}
	for _, c := range []struct {
		name    string
		tenant  v1alpha1.InferenceTenant
		pools   []v1alpha1.InferencePool
		others  []v1alpha1.InferenceTenant
		want    string
		message string
	}{
		{"no pool yet", tenant("a", "paid", "1"), nil, nil, ReasonNoPool, "paid"},
		{"a pool has the tier", tenant("a", "paid", "1"), []v1alpha1.InferencePool{pool("p", "paid")}, nil, ReasonTierFound, "tier paid of p"},
		{"none has", tenant("a", "platinum", "1"), []v1alpha1.InferencePool{pool("p", "paid", "free")}, nil, ReasonTierUnknown, "tiers are free, paid"},
		{"one has and one has not", tenant("a", "paid", "1"), []v1alpha1.InferencePool{pool("p", "paid"), pool("q", "free")}, nil, ReasonTierFound, "q has no such tier"},
		{"a key of two", tenant("a", "paid", "1", "2"), []v1alpha1.InferencePool{pool("p", "paid")}, []v1alpha1.InferenceTenant{tenant("b", "paid", "3", "2")}, ReasonKeyDuplicate, "key 222222222222… stands in tenant b too"},
		{"its own keys are not another's", tenant("a", "paid", "1"), []v1alpha1.InferencePool{pool("p", "paid")}, []v1alpha1.InferenceTenant{tenant("a", "paid", "1")}, ReasonTierFound, ""},
		{"without a key", tenant("a", "paid"), []v1alpha1.InferencePool{pool("p", "paid")}, nil, ReasonTierFound, "it has no key"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := accepted(&c.tenant, c.pools, c.others)
			if v.reason != c.want || !strings.Contains(v.message, c.message) {
				t.Errorf("%s %q, want %s %q", v.reason, v.message, c.want, c.message)
			}
		})
	}
}
