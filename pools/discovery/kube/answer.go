package kube

import (
	"net/http"
	"path"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-gateway/tandem/pools"
)

// notingTransport notes whether the API server answers.
type notingTransport struct {
	k    *Cluster
	next http.RoundTripper
}

func (t notingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(req)
	switch {
	case req.Context().Err() != nil: // we hung up
	case err != nil:
		t.k.recordAnswer(path.Base(req.URL.Path), pools.RootCause(err).Error())
	case resp.StatusCode >= 400 && resp.StatusCode != http.StatusGone: // 410: the watch is too old, list anew
		t.k.recordAnswer(path.Base(req.URL.Path), resp.Status)
	default:
		t.k.recordAnswer(path.Base(req.URL.Path), "")
	}
	return resp, err
}

// recordAnswer logs when a resource stops or starts to be answered.
func (k *Cluster) recordAnswer(resource, problem string) {
	k.mu.Lock()
	was, known := k.problems[resource]
	k.problems[resource] = problem
	k.mu.Unlock()
	switch {
	case problem == "" && was != "":
		k.log.Info("Kubernetes answers again", "resource", resource)
	case problem != "" && (!known || was == ""):
		k.log.Warn("Kubernetes does not answer: the servers it reported last stay in use", "resource", resource, "error", problem)
	}
}

// Problem returns why a resource is not answered, empty if all are.
func (k *Cluster) Problem() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	for resource, problem := range k.problems {
		if problem != "" {
			return resource + ": " + problem
		}
	}
	return ""
}

var upDesc = prometheus.NewDesc("tandem_kubernetes_up",
	"1 if the API server answered when last asked for the resource, else 0; what it said before stays in use.", []string{"resource"}, nil)

// Describe is of prometheus.Collector.
func (k *Cluster) Describe(ch chan<- *prometheus.Desc) { ch <- upDesc }

// Collect is of prometheus.Collector.
func (k *Cluster) Collect(ch chan<- prometheus.Metric) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for resource, problem := range k.problems {
		up := 1.0
		if problem != "" {
			up = 0
		}
		ch <- prometheus.MustNewConstMetric(upDesc, prometheus.GaugeValue, up, resource)
	}
}
