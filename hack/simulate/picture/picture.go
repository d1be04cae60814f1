// Package picture draws a simulation.
package picture

import (
	"io"

	"sluice.dev/sluice/hack/simulate/report"
	"sluice.dev/sluice/hack/simulate/sim"
)

// Draw writes a PNG.
func Draw(w io.Writer, r *sim.Result, s report.Summary) error { return nil }
