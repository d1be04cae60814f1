package poolspec

import "fmt"

// Telemetry says what leaves the data plane about single requests.
type Telemetry struct {
	Traces    *Traces    `json:"traces,omitempty"`    // nil: none
	AccessLog *AccessLog `json:"accessLog,omitempty"` // nil: as the process's flags say
	// UsageRecords is where usage records go: UsageStdout, or empty for nowhere.
	UsageRecords string `json:"usageRecords,omitempty"`
	// Tenants is how they name a tenant: TenantsPseudonym, or empty for by its name.
	Tenants string `json:"tenants,omitempty"`
}

// UsageStdout and TenantsPseudonym are the values of Telemetry.UsageRecords and Telemetry.Tenants.
const (
	UsageStdout      = "Stdout"
	TenantsPseudonym = "Pseudonym"
)

// Traces says where spans go, by OTLP over HTTP.
type Traces struct {
	Endpoint      string `json:"endpoint"`
	SamplePercent int    `json:"samplePercent"` // of requests whose client does not say
}

// AccessLog bounds the access log: a percentage of the served requests, and all others, of each at most so many lines
// a second.
type AccessLog struct {
	SamplePercent  int `json:"samplePercent"`
	LinesPerSecond int `json:"linesPerSecond"`
}

// TLS says that the public API is served over TLS.
type TLS struct {
	// Directory holds tls.crt and tls.key.
	Directory string `json:"directory"`
	// Plaintext keeps plain HTTP open beside it.
	Plaintext bool `json:"plaintext,omitempty"`
}

func (t *Telemetry) validate() error {
	if t == nil {
		return nil
	}
	percent := func(field string, n int) error {
		if n < 0 || n > 100 {
			return fmt.Errorf("%s is %d, want 0 to 100", field, n)
		}
		return nil
	}
	if t.UsageRecords != "" && t.UsageRecords != UsageStdout {
		return fmt.Errorf("usageRecords is %q, want %s or nothing", t.UsageRecords, UsageStdout)
	}
	if t.Tenants != "" && t.Tenants != TenantsPseudonym {
		return fmt.Errorf("tenants is %q, want %s or nothing", t.Tenants, TenantsPseudonym)
	}
	if x := t.Traces; x != nil {
		if x.Endpoint == "" {
			return fmt.Errorf("traces.endpoint is empty")
		}
		if err := percent("traces.samplePercent", x.SamplePercent); err != nil {
			return err
		}
	}
	if l := t.AccessLog; l != nil {
		if l.LinesPerSecond < 0 {
			return fmt.Errorf("accessLog.linesPerSecond is negative")
		}
		return percent("accessLog.samplePercent", l.SamplePercent)
	}
	return nil
}
