package gateway

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"sluice.dev/sluice/internal/batching"
	"sluice.dev/sluice/internal/wire"
	"sluice.dev/sluice/internal/zone"
)

// Names of the gateway's and batcher's metrics. No label ever carries a tenant, a key or a request id.
const (
	metricRequests    = "sluice_requests_total"
	metricDuration    = "sluice_request_duration_seconds"
	metricQueueWait   = "sluice_queue_wait_seconds"
	metricBatchSize   = "sluice_request_batch_size"
	metricOffered     = "sluice_offered_requests_total"
	metricQueueDepth  = "sluice_queue_depth"
	metricQueueBytes  = "sluice_queue_bytes"
	metricOldest      = "sluice_queue_oldest_wait_seconds"
	metricBacklog     = "sluice_backlog_seconds"
	metricCapacity    = "sluice_capacity_requests_per_second"
	metricWorkers     = "sluice_workers"
	metricWindow      = "sluice_assembly_window_seconds"
	metricServiceTime = "sluice_service_time_seconds"
	metricBatches     = "sluice_batches_total"
	metricItems       = "sluice_batch_items_total"
	metricBusy        = "sluice_worker_busy_seconds_total"
	metricWasted      = "sluice_wasted_items_total"
	metricRetries     = "sluice_batch_retries_total"
	metricPoisoned    = "sluice_poisoned_requests_total"
	metricPoisonKnown = "sluice_poisoned_refusals_total"
	metricZone        = "sluice_zone"
	metricAdmit       = "sluice_admit_ratio"
	metricSignalStale = "sluice_zone_signal_stale"
	metricSignalGen   = "sluice_zone_signal_generation"
	metricDegraded    = "sluice_degraded_requests_total"
	metricReroutes    = "sluice_reroute_failures_total"

	metricQuotaFallback  = "sluice_quota_fallbacks_total"
	metricQuotaUnsettled = "sluice_quota_unsettled_total"

	metricCertNotAfter = "sluice_tls_certificate_not_after_seconds"
	metricCertReloads  = "sluice_tls_certificate_reloads_total"
	metricCertFailures = "sluice_tls_certificate_failures_total"
)

// metrics of one gateway, in a registry of its own.
type metrics struct {
	registry  *prometheus.Registry
	requests  *prometheus.CounterVec
	ok        []prometheus.Counter // of requests: served ones, by tier
	duration  []prometheus.Observer
	queueWait []prometheus.Observer
	batchSize prometheus.Histogram
	degraded  *prometheus.CounterVec

	rerouteFailed prometheus.Counter
}

func newMetrics(g *Gateway) *metrics {
	m := &metrics{
		registry:      prometheus.NewRegistry(),
		requests:      prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricRequests, Help: "Requests answered, by tier, status code and reason."}, []string{"tier", "code", "reason"}),
		degraded:      prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricDegraded, Help: "Answers that were degraded, by tier, zone and step of the ladder."}, []string{"tier", "zone", "step"}),
		rerouteFailed: prometheus.NewCounter(prometheus.CounterOpts{Name: metricReroutes, Help: "Requests handed to another pool that did not answer 200."}),
		batchSize: prometheus.NewHistogram(prometheus.HistogramOpts{Name: metricBatchSize, Help: "Size of the batch that a served request shared.",
			Buckets: []float64{1, 2, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 99, 100, 200, 500, 1000}}),
	}
	duration := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: metricDuration, Help: "Time from arrival to answer of served requests.",
		Buckets: []float64{.01, .025, .05, .075, .1, .125, .15, .2, .25, .3, .4, .5, .75, 1, 1.5, 2, 5, 10, 60}}, []string{"tier"})
	wait := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: metricQueueWait, Help: "Time that served requests waited for their batch.",
		Buckets: []float64{.001, .005, .01, .02, .03, .04, .06, .1, .15, .2, .3, .5, .75, 1, 2, 5, 10, 60}}, []string{"tier"})
	for _, t := range g.pool.Tiers {
		m.ok = append(m.ok, m.requests.WithLabelValues(t.Name, "200", string(ReasonOK)))
		m.duration = append(m.duration, duration.WithLabelValues(t.Name))
		m.queueWait = append(m.queueWait, wait.WithLabelValues(t.Name))
	}
	m.registry.MustRegister(m.requests, m.batchSize, m.degraded, m.rerouteFailed, duration, wait, &engineCollector{g},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) request(tier string, code int, reason Reason) {
	m.requests.WithLabelValues(tier, strconv.Itoa(code), string(reason)).Inc()
}

func (m *metrics) served(tier int, latency time.Duration, r batching.Result) {
	m.duration[tier].Observe(latency.Seconds())
	m.queueWait[tier].Observe(r.QueueWait.Seconds())
	m.batchSize.Observe(float64(r.BatchSize))
}

// Registry is where the metrics are: for more collectors of the same process.
func (g *Gateway) Registry() *prometheus.Registry { return g.metrics.registry }

func (g *Gateway) metricsHandler() http.Handler {
	return promhttp.HandlerFor(g.metrics.registry, promhttp.HandlerOpts{})
}

// engineCollector reads one snapshot per scrape, so that the numbers of one scrape agree.
type engineCollector struct{ g *Gateway }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	descOffered     = desc(metricOffered, "First attempts that were wanted served: admitted or refused for capacity.", "tier")
	descQueueDepth  = desc(metricQueueDepth, "Requests waiting.", "tier")
	descQueueBytes  = desc(metricQueueBytes, "Bytes of the inputs that wait.")
	descOldest      = desc(metricOldest, "How long the oldest waiting request has waited.")
	descBacklog     = desc(metricBacklog, "Time this batcher's share of the capacity needs for what waits.")
	descCapacity    = desc(metricCapacity, "Items a second that the live workers can serve, as this batcher sees it.")
	descWorkers     = desc(metricWorkers, "Workers by state, as this batcher sees them.", "state")
	descWindow      = desc(metricWindow, "Assembly window that holds now.")
	descServiceTime = desc(metricServiceTime, "Measured time of a full batch.", "quantile")
	descBatches     = desc(metricBatches, "Batches sent and answered.")
	descItems       = desc(metricItems, "Requests in those batches.")
	descBusy        = desc(metricBusy, "Time that workers ran this batcher's batches.")
	descWasted      = desc(metricWasted, "Requests that ran although nobody waited any more.")
	descRetries     = desc(metricRetries, "Requests requeued for a second attempt.")
	descPoisoned    = desc(metricPoisoned, "Requests whose input was found to fail the function: 422 after an attempt.")
	descPoisonKnown = desc(metricPoisonKnown, "Requests whose input is known to fail the function: 422 without an attempt.")
	descZone        = desc(metricZone, "1 for the zone that is applied now.", "zone")
	descAdmit       = desc(metricAdmit, "Part of a tier's requests that the zone admits, 0 to 1.", "tier")
	descStale       = desc(metricSignalStale, "1 when the operator has not been heard for 10 s.")
	descGeneration  = desc(metricSignalGen, "Generation of the last zone document read.")
)

// Describe implements prometheus.Collector.
func (c *engineCollector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *engineCollector) Collect(ch chan<- prometheus.Metric) {
	g := c.g
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	v := g.zone.view(time.Now())
	s := v.snap
	for i := range g.tiers {
		name := g.pool.Tiers[i].Name
		counter(descOffered, float64(g.tiers[i].offered.Load()), name)
		gauge(descAdmit, float64(v.permille[i])/1000, name)
		if i < len(s.Tiers) && !g.standalone {
			gauge(descQueueDepth, float64(s.Tiers[i].Queued), name)
		}
	}
	counter(descPoisonKnown, float64(s.PoisonRefused)) // those that this process answered: a batcher's, or a gateway's
	if !g.standalone {                                 // the batchers report theirs
		collectEngine(s, gauge, counter)
	}
	for _, z := range []zone.Name{zone.Green, zone.Yellow, zone.Red} {
		gauge(descZone, oneIf(v.zone == z), string(z))
	}
	generation := int64(0)
	if sig := g.zone.signal.Load(); sig != nil {
		generation = sig.Generation
	}
	gauge(descGeneration, float64(generation))
	gauge(descStale, oneIf(generation > 0 && v.stale))
}

func collectEngine(s batching.Snapshot, gauge, counter func(d *prometheus.Desc, v float64, labels ...string)) {
	gauge(descQueueBytes, float64(s.Bytes))
	gauge(descOldest, s.OldestWait.Seconds())
	gauge(descBacklog, s.Backlog.Seconds())
	gauge(descCapacity, s.Mu)
	gauge(descWindow, s.Window.Seconds())
	gauge(descServiceTime, s.ServiceP50.Seconds(), "0.5")
	gauge(descServiceTime, s.ServiceP99.Seconds(), "0.99")
	counter(descBatches, float64(s.Batches))
	counter(descItems, float64(s.Items))
	counter(descBusy, s.Busy.Seconds())
	counter(descWasted, float64(s.Wasted))
	counter(descRetries, float64(s.Retries))
	counter(descPoisoned, float64(s.Poisoned))
	states := map[string]int{}
	for _, w := range s.Workers {
		states[w.State]++
	}
	for _, state := range []string{wire.ViewIdle, wire.ViewMine, wire.ViewOther, wire.ViewUnhealthy, wire.ViewDraining} {
		gauge(descWorkers, float64(states[state]), state)
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
