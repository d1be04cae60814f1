package quota

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

const pool5 = 72_000 // tokens a minute

func shared(tenant string, perMinute, tokens int64) Ask {
	return Ask{Tenant: tenant, PoolLimits: Limits{TokensPerMinute: perMinute}, Cost: Cost{Requests: 1, Tokens: tokens}}
}

// The acceptance scenario: four tenants at 1 request/s with small prompts and one at 1 request/s with 3,000
// token prompts, 14,000 tokens/min each under a shared 72,000. After a minute of warm-up, over 60 s the small
// ones see no refusal, the big one's admitted prompt tokens are 200-250 a second, and each refusal names a wait
// after which the same request passes if it waits that long.
func TestScenarioOneBigTenantAmongSmallOnes(t *testing.T) {
	run := func(skip int) (admitted int64, smallRefused int, firstWait time.Duration, granted bool) {
		l := NewLedger(epoch, 2*second)
		for s := range 120 {
			now := at(time.Duration(s) * second)
			for tenant := range 5 {
				c := Cost{Requests: 1, Tokens: 60}
				if tenant == 4 {
					c.Tokens = 3000
				}
				q := Ask{Tenant: fmt.Sprint(tenant), Limits: Limits{TokensPerMinute: 14_000}, PoolLimits: Limits{TokensPerMinute: pool5}, Cost: c}
				if tenant == 4 && firstWait > 0 && skip > 0 {
					if skip--; skip == 0 { // the request that was refused comes again after its wait, and no other before it
						return 0, 0, firstWait, l.Reserve(now.Add(firstWait%second), q).Granted
					}
					continue
				}
				r := l.Reserve(now, q)
				switch {
				case r.Granted:
					l.Settle(now.Add(150*time.Millisecond), r.Grant, c)
					if s >= 60 && tenant == 4 {
						admitted += c.Tokens
					}
				case tenant == 4:
					if s >= 60 && firstWait == 0 {
						firstWait = r.RetryAfter
						skip = min(skip, int(firstWait/second))
					}
					if r.RetryAfter <= 0 || r.RetryAfter > time.Minute || r.Estimated {
						t.Errorf("second %d: refused with a wait of %v", s, r.RetryAfter)
					}
				case s >= 60:
					smallRefused++
				}
			}
		}
		return admitted, smallRefused, firstWait, false
	}
	admitted, refused, _, _ := run(0)
	if refused > 0 {
		t.Errorf("%d refusals of small tenants, want 0", refused)
	}
	if rate := float64(admitted) / 60; rate < 200 || rate > 250 {
		t.Errorf("%.0f tokens/s admitted of the big tenant, want 200-250", rate)
	}
	if _, _, wait, granted := run(60); !granted {
		t.Errorf("refused again after the %v that the refusal named", wait)
	}
}

// Whatever is asked, used and given back, and by however many tenants: what is admitted over a window w is at
// most R + R*w, no credit exceeds what there is, and the bucket never holds more than R.
func TestBudgetHoldsExactly(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 2))
		limit := 1 + r.Int64N(20_000)
		l := NewLedger(epoch, 2*second)
		type event struct {
			at   time.Duration
			kept int64
		}
		var events []event
		now := time.Duration(0)
		for range 2000 {
			now += time.Duration(r.ExpFloat64() * float64(20*time.Millisecond))
			if r.IntN(300) == 0 {
				now += time.Duration(r.IntN(90)) * second
			}
			tenant := fmt.Sprint(r.IntN(1 + r.IntN(12)))
			cost := 1 + r.Int64N(1+limit/int64(1+r.IntN(20)))
			q := shared(tenant, limit, min(cost, limit))
			got := l.Reserve(at(now), q)
			if got.Granted {
				kept := q.Cost.Tokens
				if r.IntN(3) == 0 {
					kept = r.Int64N(kept + 1)
				}
				l.Settle(at(now), got.Grant, Cost{Requests: 1, Tokens: kept})
				events = append(events, event{now, kept})
			} else if !got.TooLarge && got.RetryAfter <= 0 {
				t.Fatalf("refused without a wait: %+v", got)
			}
			p := &l.budgets[""].tokens
			sum := int64(0)
			for _, m := range l.budgets[""].members {
				sum += m.tokens
				if m.tokens < 0 || m.tokens > p.place(len(l.budgets[""].members)) {
					t.Fatalf("seed %d: a credit of %d with a place of %d", seed, m.tokens, p.place(len(l.budgets[""].members)))
				}
			}
			if sum != p.credits || p.free() < 0 || p.level > limit || p.pending < 0 {
				t.Fatalf("seed %d: credits %d (kept as %d), level %d, pending %d of %d", seed, sum, p.credits, p.level, p.pending, limit)
			}
		}
		for i := range events {
			sum := int64(0)
			for j := i; j < len(events); j++ {
				sum += events[j].kept
				if w := events[j].at - events[i].at; float64(sum-limit)*60e9 > float64(limit)*float64(w)*(1+1e-12) {
					t.Fatalf("seed %d: %d admitted in %v under %d a minute", seed, sum, w, limit)
				}
			}
		}
	}
}

// demand lets tenants ask for so many tokens a second each, in requests of cost, and returns what was admitted
// of each over the last minute of ten (by then nobody lives on what it had saved up), and how many requests of each
// were refused in it.
func demand(l *Ledger, perMinute, cost int64, perSecond ...int64) (got []int64, refused []int) {
	got, refused = make([]int64, len(perSecond)), make([]int, len(perSecond))
	for ms := range 600_000 {
		now := at(time.Duration(ms) * time.Millisecond)
		for i, d := range perSecond {
			if d == 0 || int64(ms)%(1000*cost/d) != 0 {
				continue
			}
			r := l.Reserve(now, shared(fmt.Sprint(i), perMinute, cost))
			if r.Granted {
				l.Settle(now, r.Grant, r.Grant.Cost)
			}
			switch {
			case ms < 540_000:
			case r.Granted:
				got[i] += cost
			default:
				refused[i]++
			}
		}
	}
	return got, refused
}

// Max-min fairness: who asks for less than an equal part gets all of it, the rest is divided equally among
// those who want more, and nothing is left over.
func TestSharesAreMaxMinFair(t *testing.T) {
	for _, c := range []struct {
		demand, want []int64 // tokens a second, tokens a minute
	}{
		{[]int64{100, 1000, 1000}, []int64{6000, 27_000, 27_000}}, // 60,000 in all
		{[]int64{50, 100, 2000, 500}, []int64{3000, 6000, 25_500, 25_500}},
		{[]int64{5000}, []int64{60_000}},
		{[]int64{200, 200, 200}, []int64{12_000, 12_000, 12_000}}, // less than there is
		{[]int64{1000, 1000, 1000, 1000, 1000}, []int64{12_000, 12_000, 12_000, 12_000, 12_000}},
	} {
		got, refused := demand(NewLedger(epoch, 2*second), 60_000, 50, c.demand...)
		for i, want := range c.want {
			if d := got[i] - want; d < -want/50-100 || d > want/50+100 {
				t.Errorf("demand %v/s: tenant %d got %d a minute, want %d", c.demand, i, got[i], want)
			}
			if want == 60*c.demand[i] && refused[i] > 0 {
				t.Errorf("demand %v/s: tenant %d, under its fair part, was refused %d times", c.demand, i, refused[i])
			}
		}
	}
}

// One tenant has used up everything; another that begins to ask is served at once, up to its fair part.
func TestNewcomerFindsItsPlace(t *testing.T) {
	l := NewLedger(epoch, 2*second)
	spend := func(tenant string, now time.Time) (n int64) {
		for r := l.Reserve(now, shared(tenant, 1200, 10)); r.Granted; r = l.Reserve(now, shared(tenant, 1200, 10)) {
			n += 10
		}
		return n
	}
	if n := spend("greedy", epoch); n != 600 {
		t.Errorf("a tenant alone took %d of 1,200 at once, want its place of 600: another one is kept", n)
	}
	for s := range 120 {
		spend("greedy", at(time.Duration(s)*second))
	}
	if n := spend("new", at(120*second)); n != 400 {
		t.Errorf("the second tenant took %d at once, want a third of 1,200", n)
	}
}

// A wait that is no estimate is kept whatever the other tenants do in the meantime.
func TestRetryAfterOfABudgetIsAPromise(t *testing.T) {
	l := NewLedger(epoch, 2*second)
	now := epoch
	ask := func(tenant string, c int64) Reply { return l.Reserve(now, shared(tenant, 6000, c)) }
	flood := func() {
		for i := range 5 {
			for ask(fmt.Sprint("greedy-", i), 7).Granted {
			}
		}
	}
	ask("patient", 1)
	for range 60 {
		flood()
		now = now.Add(second)
	}
	for ask("patient", 50).Granted {
	}
	r := ask("patient", 700)
	if r.Granted || r.Estimated || r.RetryAfter <= 0 || r.Scope != OfPool || r.Of != Tokens || r.Limit != 6000 || r.Share != 6000/7 {
		t.Fatalf("%+v", r)
	}
	for end := now.Add(r.RetryAfter); now.Before(end); now = now.Add(10 * time.Millisecond) {
		flood()
	}
	if again := ask("patient", 700); !again.Granted {
		t.Errorf("after %v: %+v", r.RetryAfter, again)
	}
	if r := ask("patient", 6001); !r.TooLarge {
		t.Errorf("above the whole budget: %+v", r)
	}
	if r := ask("patient", 3000); r.Granted || !r.Estimated || r.RetryAfter <= 0 {
		t.Errorf("above a fair part: %+v, want a wait that is no promise", r)
	}
}

// A request above its fair part passes when the others leave enough.
func TestLargeRequestMayUseTheKeptPlace(t *testing.T) {
	l := NewLedger(epoch, 2*second)
	if r := l.Reserve(epoch, shared("a", 1000, 1000)); !r.Granted {
		t.Errorf("all of the budget by the only tenant: %+v", r)
	}
	r := l.Reserve(epoch, shared("a", 1000, 900))
	if r.Granted || !r.Estimated {
		t.Fatalf("%+v", r)
	}
	if r := l.Reserve(at(r.RetryAfter+second), shared("a", 1000, 900)); !r.Granted {
		t.Errorf("%+v", r)
	}
}

// Tier and pool both gate, and a refusal says whose limit it was. What is refused by one costs the others nothing.
func TestTierAndPoolGate(t *testing.T) {
	l := NewLedger(epoch, 2*second)
	q := Ask{
		Tenant: "a", Limits: Limits{RequestsPerMinute: 5}, Tier: "free", TierLimits: Limits{RequestsPerMinute: 6},
		PoolLimits: Limits{RequestsPerMinute: 100}, Cost: Cost{Requests: 1},
	}
	take := func(tenant string) (n int, last Reply) {
		q.Tenant = tenant
		for last = l.Reserve(epoch, q); last.Granted; last = l.Reserve(epoch, q) {
			n++
		}
		return n, last
	}
	if n, r := take("a"); n != 3 || r.Scope != OfTier || r.Of != Requests {
		t.Errorf("%d passed, then %+v: want half of the tier's 6, the other half is kept", n, r)
	}
	if n, r := take("b"); n != 2 || r.Scope != OfTier {
		t.Errorf("%d of the second passed, then %+v, want a third of 6", n, r)
	}
	if p := &l.budgets[""].requests; p.level != 95 {
		t.Errorf("the pool has %d of 100 left after 5: a request that the tier refused was charged to it", p.level)
	}
	if a := l.accounts["a"]; a.requests.level != 2 {
		t.Errorf("the tenant has %d of 5 left after 3", a.requests.level)
	}
	q.Limits.RequestsPerMinute = 1
	if _, r := take("c"); r.Scope != OfTenant && r.Scope != OfTier {
		t.Errorf("%+v", r)
	}
}

// What is not used, or was shed, is there again, for the tenant first.
func TestBudgetSettles(t *testing.T) {
	l := NewLedger(epoch, 2*second)
	r := l.Reserve(epoch, shared("a", 1000, 400))
	l.Settle(epoch, r.Grant, Cost{})
	b := l.budgets[""]
	if b.tokens.level != 1000 || b.index["a"].tokens != 500 || b.tokens.held != 0 {
		t.Errorf("after a refund: level %d, credit %d, held %d", b.tokens.level, b.index["a"].tokens, b.tokens.held)
	}
	r = l.Reserve(epoch, shared("a", 1000, 400))
	l.Settle(epoch, r.Grant, Cost{Requests: 1, Tokens: 600})
	if b.tokens.level != 400 || b.index["a"].tokens != -100 {
		t.Errorf("more used than reserved: level %d, credit %d, want the tenant to owe it", b.tokens.level, b.index["a"].tokens)
	}
	// Its gateway dies with a reservation: that is spent, and holds nothing back for ever.
	l.Reserve(epoch, shared("b", 1000, 100))
	l.Reserve(at(30*second), shared("a", 1000, 1))
	if b.tokens.held != 1 {
		t.Errorf("held %d after half a minute, want the last request's alone", b.tokens.held)
	}
}

// A budget keeps the tenants of the last minute and no others, and is itself dropped when nobody asks.
func TestBudgetMemoryIsBounded(t *testing.T) {
	l := NewLedger(epoch, 2*second)
	var now time.Time
	for i := range 10_000 {
		now = at(time.Duration(i) * 100 * time.Millisecond)
		r := l.Reserve(now, shared(fmt.Sprint("tenant-", i), 1_000_000, 10))
		l.Settle(now, r.Grant, r.Grant.Cost)
		if l.Len() > 720 {
			t.Fatalf("%d members after %d tenants of which 600 asked within a minute", l.Len(), i)
		}
	}
	l.Reserve(now.Add(2*time.Minute), Ask{Tenant: "x", Limits: Limits{RequestsPerMinute: 1}, Cost: Cost{Requests: 1}})
	l.Reserve(now.Add(4*time.Minute), Ask{Tenant: "x", Limits: Limits{RequestsPerMinute: 1}, Cost: Cost{Requests: 1}})
	if len(l.budgets) != 0 {
		t.Errorf("a budget that nobody uses is kept")
	}
}

func TestBudgetLimitChanges(t *testing.T) {
	l := NewLedger(epoch, 2*second)
	l.Reserve(epoch, shared("a", 1000, 1))
	if r := l.Reserve(epoch, shared("a", 100, 60)); !r.Granted {
		t.Errorf("lowered: %+v", r)
	}
	if r := l.Reserve(epoch, shared("a", 100, 60)); r.Granted {
		t.Error("lowered to 100: 120 passed")
	}
	if r := l.Reserve(epoch, shared("a", 10_000, 1000)); r.Granted {
		t.Error("raised: what is new flows in, it is not there at once")
	}
}

func BenchmarkBudget(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprint("tenants=", n), func(b *testing.B) {
			l := NewLedger(epoch, 2*second)
			names := make([]string, n)
			for i := range names {
				names[i] = fmt.Sprint("tenant-", i)
			}
			now := epoch
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				now = now.Add(100 * time.Microsecond) // 10,000 requests/s
				if r := l.Reserve(now, shared(names[i%n], 60_000_000, 200)); r.Granted {
					l.Settle(now, r.Grant, r.Grant.Cost)
				}
			}
		})
	}
}
