package gateway

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"time"

	"sluice.dev/sluice/internal/poolspec"
	"sluice.dev/sluice/internal/telemetry"
	"sluice.dev/sluice/internal/usage"
	"sluice.dev/sluice/internal/wire"
)

// Reports are where a process tells of single requests beside its log. The zero value tells nobody.
type Reports struct {
	Tracer *telemetry.Tracer // nil: no traces
	Usage  *usage.Log        // nil: no usage records
}

// NewReports makes what the pool asks for. Service names the process in traces; usage records go to records.
func NewReports(ctx context.Context, p poolspec.Pool, service, pod string, records io.Writer, log *slog.Logger) (Reports, error) {
	var r Reports
	t := p.Telemetry
	if t == nil {
		return r, nil
	}
	if t.Traces != nil {
		var err error
		r.Tracer, err = telemetry.New(ctx, telemetry.Config{
			Endpoint: t.Traces.Endpoint, SamplePercent: t.Traces.SamplePercent,
			Service: service, Pool: p.Name, Namespace: p.Namespace, Pod: pod, Log: log,
		})
		if err != nil {
			return r, err
		}
	}
	if t.UsageRecords == poolspec.UsageStdout {
		r.Usage = usage.NewLog(records, 0, log)
	}
	return r, nil
}

// Close sends and writes what is buffered, at the latest until ctx ends. No request may be served any more.
func (r Reports) Close(ctx context.Context) error {
	return errors.Join(r.Usage.Close(ctx), r.Tracer.Shutdown(ctx))
}

// tell reports what became of a request: metrics, access log, trace and usage record.
func (g *Gateway) tell(x *exchange, ref *refusal, latency time.Duration) {
	g.count(x, ref, latency)
	g.log.write(g, x, ref, latency)
	g.endTrace(x, ref, latency)
	g.recordUsage(x, ref, latency)
}

// outcome is the status and reason of the answer.
func (x *exchange) outcome(ref *refusal) (int, Reason) {
	if ref == nil {
		return http.StatusOK, ReasonOK
	}
	return ref.answer().status, ref.reason
}

// tierName is "" while the tier is not known.
func (g *Gateway) tierName(x *exchange) string {
	if x.caller.tier < 0 {
		return ""
	}
	return g.pool.Tiers[x.caller.tier].Name
}

// tenantName is how logs, traces and usage records call the tenant: by its name or, where the pool says Pseudonym,
// by its flow key, which says that two requests are of one tenant and not of which.
func (g *Gateway) tenantName(x *exchange) string {
	if x.caller.tenant == "" || !g.pseudonyms {
		return x.caller.tenant
	}
	return x.caller.flow
}

func (g *Gateway) endTrace(x *exchange, ref *refusal, latency time.Duration) {
	if x.trace == nil {
		return
	}
	status, reason := x.outcome(ref)
	e := telemetry.End{
		At: x.arrival.Add(latency), ID: x.id, Tier: g.tierName(x), Tenant: g.tenantName(x),
		Status: status, Reason: string(reason),
		Attempts: x.result.Attempts, BatchID: x.result.BatchID, BatchSize: x.result.BatchSize,
	}
	if x.result.BatchID != "" {
		e.Formed = x.arrival.Add(x.result.QueueWait)
	}
	x.trace.End(e)
}

// recordUsage writes a record for a request of a known tier. One whose caller is not known has nobody to account
// it to, and could come in any number.
func (g *Gateway) recordUsage(x *exchange, ref *refusal, latency time.Duration) {
	if g.reports.Usage == nil || x.caller.tier < 0 {
		return
	}
	status, reason := x.outcome(ref)
	u := x.result.Usage
	if x.instead != "" {
		u = wire.Usage{}
	}
	var degraded []string
	if ref == nil {
		degraded = x.degradedList()
	}
	g.reports.Usage.Add(usage.Record{
		Time: x.wall, RequestID: x.id, Namespace: g.pool.Namespace, Pool: g.pool.Name, Pod: g.pod,
		Tenant: g.tenantName(x), Tier: g.tierName(x), API: x.codec.name(),
		Outcome: usage.OutcomeOf(status), Status: status, Reason: string(reason),
		PromptTokens: u.PromptTokens, CompletionTokens: u.CompletionTokens, Estimated: u.Estimated,
		LatencyMs: ms(latency), QueueWaitMs: ms(x.result.QueueWait), Attempts: x.result.Attempts, BatchID: x.result.BatchID,
		Degraded: degraded,
	})
}

// accessLogOf is the access log that the pool asks for, else the process's own.
func accessLogOf(o Options) *accessLog {
	l := &accessLog{log: o.Log, percent: 100, served: lineRate{perSecond: o.AccessLogPerSecond}, refused: lineRate{perSecond: o.AccessLogPerSecond}}
	if t := o.Pool.Telemetry; t != nil && t.AccessLog != nil {
		l.percent = uint32(t.AccessLog.SamplePercent)
		l.served.perSecond, l.refused.perSecond = t.AccessLog.LinesPerSecond, t.AccessLog.LinesPerSecond
	}
	return l
}

func pseudonyms(p poolspec.Pool) bool {
	return p.Telemetry != nil && p.Telemetry.Tenants == poolspec.TenantsPseudonym
}
