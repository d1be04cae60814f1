package relay

import "github.com/prometheus/client_golang/prometheus"

// Names of a standalone gateway's own metrics; the others are package gateway's.
const (
	metricBatchers = "sluice_gateway_batchers"
	metricParked   = "sluice_gateway_parked_requests"
	metricLost     = "sluice_gateway_lost_requests_total"
	metricRerouted = "sluice_gateway_rerouted_requests_total"
)

var (
	descBatchers = prometheus.NewDesc(metricBatchers, "Batchers that take requests from this gateway.", nil, nil)
	descParked   = prometheus.NewDesc(metricParked, "Requests under way at batchers.", nil, nil)
	descLost     = prometheus.NewDesc(metricLost, "Requests whose batcher was lost while it had them.", nil, nil)
	descRerouted = prometheus.NewDesc(metricRerouted, "Requests sent to a second batcher because the first was lost.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c *Client) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *Client) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(descBatchers, prometheus.GaugeValue, float64(len(c.usable.Load().links)))
	ch <- prometheus.MustNewConstMetric(descParked, prometheus.GaugeValue, float64(c.parked.Load()))
	ch <- prometheus.MustNewConstMetric(descLost, prometheus.CounterValue, float64(c.lost.Load()))
	ch <- prometheus.MustNewConstMetric(descRerouted, prometheus.CounterValue, float64(c.rerouted.Load()))
}
