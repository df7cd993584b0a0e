package kube

import (
	"bytes"
	"encoding/json"
	"io"
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
	resource, watches := path.Base(req.URL.Path), req.URL.Query().Get("watch") != ""
	switch {
	case req.Context().Err() != nil: // we hung up
	case err != nil:
		t.k.recordAnswer(resource, watches, pools.RootCause(err).Error())
	case resp.StatusCode >= 400 && resp.StatusCode != http.StatusGone: // 410: the watch is too old, list anew
		t.k.recordAnswer(resource, watches, refusalOf(resp))
	default:
		t.k.recordAnswer(resource, watches, "")
	}
	return resp, err
}

// maxRefusal is how much of a refusal is read, in bytes.
const maxRefusal = 8 << 10

// refusalOf is the status of an answer, with the API server's own words where it has some: who may not do what.
// The answer can be read all the same.
func refusalOf(resp *http.Response) string {
	start, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(start), resp.Body), resp.Body}
	var said struct{ Message string }
	if err != nil || json.Unmarshal(start, &said) != nil || said.Message == "" {
		return resp.Status
	}
	return resp.Status + ": " + said.Message
}

// problem is why a resource is not answered.
type problem struct {
	text string // "": it is
	// ofWatches: that a list is answered does not end it. Who may list and not watch is answered in turn.
	ofWatches bool
}

// recordAnswer logs when a resource stops or starts to be answered.
func (k *Cluster) recordAnswer(resource string, watches bool, text string) {
	k.mu.Lock()
	was, known := k.problems[resource]
	if text == "" && was.ofWatches && !watches {
		k.mu.Unlock()
		return
	}
	k.problems[resource] = problem{text, text != "" && (was.ofWatches || watches)}
	k.mu.Unlock()
	switch {
	case text == "" && was.text != "":
		k.log.Info("Kubernetes answers again", "resource", resource)
	case text != "" && (!known || was.text == ""):
		k.log.Warn("Kubernetes does not answer: the servers it reported last stay in use", "resource", resource, "error", text)
	}
}

// Problem returns why a resource is not answered, empty if all are.
func (k *Cluster) Problem() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	for resource, p := range k.problems {
		if p.text != "" {
			return resource + ": " + p.text
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
	for resource, p := range k.problems {
		up := 1.0
		if p.text != "" {
			up = 0
		}
		ch <- prometheus.MustNewConstMetric(upDesc, prometheus.GaugeValue, up, resource)
	}
}
