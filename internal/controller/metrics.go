package controller

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"sluice.dev/sluice/api/v1alpha1"
	"sluice.dev/sluice/internal/zone"
)

// Labels of the gauges of a pool.
const (
	labelNamespace = "namespace"
	labelPool      = "pool"
)

func poolGauge(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, append([]string{labelNamespace, labelPool}, labels...))
}

// Gauges carry the pool's name and go with it; counters do not, for they could never be deleted without a
// reset.
var (
	gaugeWorkers     = poolGauge("sluice_pool_workers", "GPU workers by state: desired, ready, starting, unschedulable, draining.", "state")
	gaugeBatchers    = poolGauge("sluice_pool_batchers", "Batchers by state: desired, ready.", "state")
	gaugeQueue       = poolGauge("sluice_pool_queue_depth", "Requests waiting, all batchers together.")
	gaugeBacklog     = poolGauge("sluice_pool_backlog_seconds", "Time that the ready workers need for what waits.")
	gaugeCapacity    = poolGauge("sluice_pool_capacity_requests_per_second", "Requests a second that the ready workers can serve.")
	gaugeOffered     = poolGauge("sluice_pool_offered_requests_per_second", "Requests a second that clients want served, first attempts only.")
	gaugeUtilization = poolGauge("sluice_pool_utilization_ratio", "Offered load over capacity; absent while unknown.")
	gaugeZone        = poolGauge("sluice_pool_zone", "1 for the zone that the pool is in.", "zone")
	gaugeReady       = poolGauge("sluice_pool_ready", "1 while the pool's condition Ready is True.")
	gaugeComplete    = poolGauge("sluice_pool_metrics_complete", "1 while every Ready batcher reports.")

	scalingDecisions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_scaling_decisions_total",
		Help: "Scaling decisions, one a scrape and pool, by reason; outcome is up, down or held.",
	}, []string{"reason", "outcome"})
	zoneChanges = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_zone_changes_total",
		Help: "Changes of zone, all pools together, by the zone entered and the reason.",
	}, []string{"zone", "reason"})
	wrongWorkers = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sluice_scaling_wrong_worker_total",
		Help: "Scale-downs in which another worker left than the one chosen.",
	})
	workersReplaced = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sluice_workers_replaced_total",
		Help: "Workers that were evicted because they did not serve and their GPU was unhealthy.",
	})
	applied = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_children_applied_total",
		Help: "Server-side applies of pools' children, by kind. It stands still while nothing changes.",
	}, []string{"kind"})
	statusWrites = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sluice_status_writes_total",
		Help: "Writes of the status of InferencePools and InferenceTenants.",
	})

	gauges = []*prometheus.GaugeVec{gaugeWorkers, gaugeBatchers, gaugeQueue, gaugeBacklog, gaugeCapacity, gaugeOffered,
		gaugeUtilization, gaugeZone, gaugeReady, gaugeComplete}
)

func init() {
	for _, g := range gauges {
		metrics.Registry.MustRegister(g)
	}
	metrics.Registry.MustRegister(scalingDecisions, zoneChanges, wrongWorkers, workersReplaced, applied, statusWrites)
}

// setGauges shows one pool.
func setGauges(key types.NamespacedName, seen *observed, p plan, s *v1alpha1.InferencePoolStatus, ready bool) {
	set := func(g *prometheus.GaugeVec, v float64, labels ...string) {
		g.WithLabelValues(append([]string{key.Namespace, key.Name}, labels...)...).Set(v)
	}
	set(gaugeWorkers, float64(s.Workers.Desired), "desired")
	set(gaugeWorkers, float64(s.Workers.Ready), "ready")
	set(gaugeWorkers, float64(s.Workers.Starting), "starting")
	set(gaugeWorkers, float64(s.Workers.Unschedulable), "unschedulable")
	set(gaugeWorkers, float64(s.Workers.Draining), "draining")
	set(gaugeBatchers, float64(s.Batchers.Desired), "desired")
	set(gaugeBatchers, float64(s.Batchers.Ready), "ready")
	set(gaugeQueue, float64(seen.load.Depth))
	set(gaugeBacklog, p.decision.Backlog.Seconds())
	set(gaugeCapacity, p.decision.Capacity)
	set(gaugeOffered, seen.load.Offered)
	if p.decision.Utilization >= 0 {
		set(gaugeUtilization, p.decision.Utilization)
	} else {
		gaugeUtilization.DeleteLabelValues(key.Namespace, key.Name)
	}
	for _, z := range []zone.Name{zone.Green, zone.Yellow, zone.Red} {
		set(gaugeZone, oneIf(p.zone.Name == z), string(z))
	}
	set(gaugeReady, oneIf(ready))
	set(gaugeComplete, oneIf(seen.load.Complete))
}

// deleteGauges takes a pool that is gone off the metrics page.
func deleteGauges(key types.NamespacedName) {
	for _, g := range gauges {
		g.DeletePartialMatch(prometheus.Labels{labelNamespace: key.Namespace, labelPool: key.Name})
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
