// Package poolspec is the document by which the operator tells a pool's data plane what the pool is. The
// operator writes it into the batcher's (and gateway's) container arguments, so a batcher needs no right
// to read InferencePools, starts while the API server is away, and changes only by a rollout that loses
// nothing. The same code writes and reads it.
package poolspec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// Version is the version of the document. A reader refuses any other.
const Version = 1

// Pool is what a data plane needs to know of its pool. All durations are in the JSON as Go duration
// strings.
type Pool struct {
	Version   int    `json:"version"`
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
	Model     string `json:"model"`

	// Tiers, highest first: 1 to 8.
	Tiers    []Tier   `json:"tiers"`
	Batching Batching `json:"batching"`
	Gateway  Gateway  `json:"gateway"`
	Zones    Zones    `json:"zones"`

	// Telemetry is what leaves the data plane about single requests; nil: nothing but the process's own access log.
	Telemetry *Telemetry `json:"telemetry,omitempty"`

	// MaxWorkers is the largest number of workers the pool may have: bounds of queues and of connections
	// are derived from it.
	MaxWorkers int `json:"maxWorkers"`
	// TargetPercent is the utilization the assembly window aims at.
	TargetPercent int `json:"targetPercent"`
}

// Tier is one class of service.
type Tier struct {
	Name            string   `json:"name"`
	LatencyTarget   Duration `json:"latencyTarget"`
	Timeout         Duration `json:"timeout"`
	Shedding        string   `json:"shedding"` // Never, Throttle or First
	ReservedPercent int      `json:"reservedPercent"`
	Background      bool     `json:"background,omitempty"`
	Hours           *Hours   `json:"hours,omitempty"` // Background in these hours only, or while the pool is idle
	Limits          Limits   `json:"limits,omitzero"` // of all its tenants together
	Degrade         *Degrade `json:"degrade,omitempty"`
}

// Hours is a window that opens by a schedule.
type Hours struct {
	Schedule string   `json:"schedule"` // cron, five fields
	Duration Duration `json:"duration"`
	TimeZone string   `json:"timeZone"`
}

// Limits are per minute; 0 is unlimited.
type Limits struct {
	RequestsPerMinute int64 `json:"requestsPerMinute,omitempty"`
	TokensPerMinute   int64 `json:"tokensPerMinute,omitempty"`
}

// Degrade is a ladder for each zone.
type Degrade struct {
	Yellow []Step `json:"yellow,omitempty"`
	Red    []Step `json:"red,omitempty"` // empty: Yellow's
}

// Step is one step of a ladder: one of its fields (Pool and Model together).
type Step struct {
	MaxTokens int    `json:"maxTokens,omitempty"`
	Parameter string `json:"parameter,omitempty"` // its name, with Value
	Value     string `json:"value,omitempty"`
	Pool      string `json:"pool,omitempty"` // another pool of the namespace, with its Model
	Model     string `json:"model,omitempty"`
	TLS       *Trust `json:"tls,omitempty"` // how the other pool is asked over TLS; nil: in plain HTTP
	Answer    string `json:"answer,omitempty"`
}

// Trust says whom to trust as a server.
type Trust struct {
	CAFile     string `json:"caFile"`     // certificates (PEM) that its own must be signed by
	ServerName string `json:"serverName"` // that its certificate must be valid for
}

// Batching says how batches form.
type Batching struct {
	MaxSize          int      `json:"maxSize"`
	MaxWait          Duration `json:"maxWait"`
	InferenceTime    Duration `json:"inferenceTime"`
	InferenceTimeout Duration `json:"inferenceTimeout"`
	MaxRetries       int      `json:"maxRetries"`
}

// Gateway says who may call and how large a request may be.
type Gateway struct {
	Auth                 string   `json:"auth"` // Keys, TrustedHeaders or None
	DefaultTier          string   `json:"defaultTier,omitempty"`
	TrustedCIDRs         []string `json:"trustedCIDRs,omitempty"`
	TenantHeader         string   `json:"tenantHeader,omitempty"`
	TierHeader           string   `json:"tierHeader,omitempty"`
	MaxInputBytes        int      `json:"maxInputBytes"`
	MaxBodyBytes         int      `json:"maxBodyBytes"`
	RejectUnsupported    bool     `json:"rejectUnsupported,omitempty"` // of parameters the backend does not take
	StaleSignalOwnView   bool     `json:"staleSignalOwnView,omitempty"`
	BackendParameterMode string   `json:"backendParameterMode"`  // item, batch or none: how the backend takes parameters
	TLS                  *TLS     `json:"tls,omitempty"`         // nil: the public API is plain HTTP
	SharedLimits         Limits   `json:"sharedLimits,omitzero"` // of all tenants together
	TokenEncoding        string   `json:"tokenEncoding,omitempty"`
}

// Zones are the thresholds of a gateway's own view: of one kind, the other is zero.
type Zones struct {
	YellowBacklog Duration `json:"yellowBacklog,omitempty"`
	RedBacklog    Duration `json:"redBacklog,omitempty"`
	YellowDepth   int      `json:"yellowDepth,omitempty"`
	RedDepth      int      `json:"redDepth,omitempty"`
}

// Duration is a time.Duration that is a string such as "40ms" in JSON.
type Duration time.Duration

// D returns d as a time.Duration.
func (d Duration) D() time.Duration { return time.Duration(d) }

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil {
		return err
	}
	*d = Duration(v)
	return nil
}

// Encode returns the document.
func Encode(p Pool) (string, error) {
	p.Version = Version
	b, err := json.Marshal(p)
	return string(b), err
}

// Decode reads a document and checks it. An unknown field or version is an error: operator and data plane
// of different releases must not guess.
func Decode(s string) (Pool, error) {
	var p Pool
	dec := json.NewDecoder(bytes.NewReader([]byte(s)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&p); err != nil {
		return Pool{}, fmt.Errorf("pool document: %w", err)
	}
	return p, p.Validate()
}

// Validate says what is wrong with a document, naming the field.
func (p Pool) Validate() error {
	switch {
	case p.Version != Version:
		return fmt.Errorf("pool document: version %d, this binary reads version %d: use images of one release", p.Version, Version)
	case p.Model == "":
		return fmt.Errorf("pool document: model is empty")
	case len(p.Tiers) < 1 || len(p.Tiers) > 8:
		return fmt.Errorf("pool document: %d tiers, want 1 to 8", len(p.Tiers))
	case p.Batching.MaxSize < 1 || p.Batching.MaxSize > 1000:
		return fmt.Errorf("pool document: batching.maxSize is %d, want 1 to 1000", p.Batching.MaxSize)
	case p.Batching.InferenceTime <= 0:
		return fmt.Errorf("pool document: batching.inferenceTime must be positive")
	case p.Batching.InferenceTimeout <= p.Batching.InferenceTime:
		return fmt.Errorf("pool document: batching.inferenceTimeout must be longer than inferenceTime")
	case p.TargetPercent < 1 || p.TargetPercent > 100:
		return fmt.Errorf("pool document: targetPercent is %d, want 1 to 100", p.TargetPercent)
	}
	if err := p.Telemetry.validate(); err != nil {
		return fmt.Errorf("pool document: telemetry.%w", err)
	}
	if t := p.Gateway.TLS; t != nil && t.Directory == "" {
		return fmt.Errorf("pool document: gateway.tls.directory is empty")
	}
	reserved := 0
	seen := map[string]bool{}
	for i, t := range p.Tiers {
		if t.Name == "" || seen[t.Name] {
			return fmt.Errorf("pool document: tiers[%d].name %q is empty or stands twice", i, t.Name)
		}
		seen[t.Name] = true
		if t.Timeout <= 0 || t.LatencyTarget <= 0 {
			return fmt.Errorf("pool document: tiers[%d]: timeout and latencyTarget must be positive", i)
		}
		reserved += t.ReservedPercent
		if err := t.validate(); err != nil {
			return fmt.Errorf("pool document: tiers[%d].%w", i, err)
		}
	}
	if reserved > 50 {
		return fmt.Errorf("pool document: reservedPercent of all tiers is %d, at most 50", reserved)
	}
	return nil
}

func (t Tier) validate() error {
	switch {
	case t.Hours != nil && !t.Background:
		return fmt.Errorf("hours: only a background tier has hours")
	case t.Degrade != nil && t.Background:
		return fmt.Errorf("degrade: a background tier pauses instead")
	case t.Limits.RequestsPerMinute < 0 || t.Limits.TokensPerMinute < 0:
		return fmt.Errorf("limits: must not be negative")
	case t.Degrade == nil:
		return nil
	}
	for _, ladder := range [][]Step{t.Degrade.Yellow, t.Degrade.Red} {
		for i, s := range ladder {
			set := 0
			for _, is := range []bool{s.MaxTokens > 0, s.Parameter != "" && s.Value != "", s.Pool != "" && s.Model != "", s.Answer != ""} {
				if is {
					set++
				}
			}
			if set != 1 {
				return fmt.Errorf("degrade: a step must be one of maxTokens, parameter with value, pool with model, and answer")
			}
			if s.TLS != nil && (s.Pool == "" || s.TLS.CAFile == "" || s.TLS.ServerName == "") {
				return fmt.Errorf("degrade: tls needs a pool, a caFile and a serverName")
			}
			if s.Answer != "" && i < len(ladder)-1 {
				return fmt.Errorf("degrade: a step stands after answer, which always answers")
			}
		}
	}
	return nil
}

// Default returns the pool that a batcher serves outside Kubernetes, with the defaults of the API.
func Default() Pool {
	ms := func(n int) Duration { return Duration(time.Duration(n) * time.Millisecond) }
	return Pool{
		Version: Version, Name: "local", Model: "local",
		Tiers: []Tier{
			{Name: "enterprise", LatencyTarget: ms(500), Timeout: ms(2000), Shedding: "Never"},
			{Name: "paid", LatencyTarget: ms(500), Timeout: ms(2000), Shedding: "Throttle"},
			{Name: "free", LatencyTarget: ms(500), Timeout: ms(2000), Shedding: "First", ReservedPercent: 2},
		},
		Batching:      Batching{MaxSize: 100, MaxWait: ms(40), InferenceTime: ms(100), InferenceTimeout: ms(500), MaxRetries: 1},
		Gateway:       Gateway{Auth: "None", DefaultTier: "enterprise", MaxInputBytes: 64 << 10, MaxBodyBytes: 1 << 20, BackendParameterMode: "item"},
		Zones:         Zones{YellowBacklog: ms(300), RedBacklog: ms(750)},
		MaxWorkers:    16,
		TargetPercent: 75,
	}
}
