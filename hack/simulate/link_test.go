package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The simulator has no queue, window, zone, scaling or quota rule of its own: breaking one of the packages that
// it links changes what it says. Each case builds the simulator with one line of a rule broken.
func TestABrokenRuleChangesTheOutput(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the simulator once for every rule")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	pool := filepath.Join(t.TempDir(), "pool.yaml")
	if err := os.WriteFile(pool, []byte(testPool), 0o600); err != nil {
		t.Fatal(err)
	}
	whole := simulated(t, root, pool, "")
	for _, tt := range []struct{ rule, file, line, broken string }{
		{"how many workers a load needs", "internal/scaling/figures.go", "n := demand/(", "n := 2*demand/("},
		{"the share that is admitted", "internal/zone/admit.go", "left := f.mu - ", "left := f.mu/2 - "},
		{"the order of the tiers", "internal/batching/form.go", "more := min(rest, g.tiers[i].n-c.quota[i])", "more := min(rest, g.tiers[i].n-c.quota[i], 40)"},
		{"the refill of a bucket", "internal/quota/bucket.go", "uint64(b.rate))\n\tlo, carry := bits.Add64(lo, b.frac", "uint64(b.rate)*2)\n\tlo, carry := bits.Add64(lo, b.frac"},
		{"whom a ladder helps", "internal/degrade/degrade.go", "case zone.CauseShed, string(batching.Infeasible), string(batching.QueueFull),", "case zone.CausePaused,"},
	} {
		t.Run(tt.rule, func(t *testing.T) {
			path := filepath.Join(root, tt.file)
			src, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Count(string(src), tt.line) != 1 {
				t.Fatalf("%s no longer has the line %q: name another one of the rule", tt.file, tt.line)
			}
			broken := filepath.Join(t.TempDir(), "broken.go")
			if err := os.WriteFile(broken, []byte(strings.Replace(string(src), tt.line, tt.broken, 1)), 0o600); err != nil {
				t.Fatal(err)
			}
			overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{path: broken}})
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "overlay.json")
			if err := os.WriteFile(file, overlay, 0o600); err != nil {
				t.Fatal(err)
			}
			if simulated(t, root, pool, file) == whole {
				t.Errorf("%s is broken, and the simulator says the same: it does not run that code", tt.rule)
			}
		})
	}
}

// simulated builds the simulator, with an overlay unless it is empty, and returns what it says.
func simulated(t *testing.T, root, pool, overlay string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "simulate")
	args := []string{"build", "-o", binary}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	build := exec.Command("go", append(args, "./hack/simulate")...)
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(binary, "-pool", pool, "-load", "spike,base=900,peak=4000,at=30s,for=40s", "-duration", "100s", "-o", "json").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
