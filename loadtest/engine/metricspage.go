package engine

import (
	"bytes"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

// metricsPages are the metrics as they were last written, kept for as long as nothing that they
// show has changed: a gateway reads them ten times a second, and an engine is mostly at rest.
type metricsPages struct {
	changes atomic.Uint64 // of counters and histograms; counted after each

	mu      sync.Mutex // held while a page is written; guards all below, and what ranks show
	written uint64     // changes when the pages were written
	shown   []rankLoad // what the gauges of the pages show
	pages   map[pageKey]*page
}

// maxPages are kept at once: those of the ranks, and of clients that ask in several ways.
const maxPages = 64

// pageKey is what an answer depends on beside the metrics.
type pageKey struct {
	rank                   int
	accept, acceptEncoding string
}

// page is an answer. It is a http.ResponseWriter, to which it is written.
type page struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (p *page) Header() http.Header            { return p.header }
func (p *page) WriteHeader(status int)         { p.status = status }
func (p *page) Write(part []byte) (int, error) { return p.body.Write(part) }

// get returns the page of a key, written now if anything has changed since it was. The loads of
// the ranks are read once a page, so that what is compared is what it shows.
func (m *metricsPages) get(key pageKey, ranks []*rank, write func(http.ResponseWriter)) *page {
	m.mu.Lock()
	defer m.mu.Unlock()
	changes := m.changes.Load() // before the metrics are read: what changes meanwhile is seen next time
	loads := make([]rankLoad, len(ranks))
	for i, r := range ranks {
		loads[i] = r.load()
	}
	// The series of adapters has the time as its value.
	inTime := slices.ContainsFunc(loads, func(l rankLoad) bool { return l.adaptersUsed })
	if inTime || m.pages == nil || changes != m.written || !reflect.DeepEqual(loads, m.shown) {
		m.written, m.shown, m.pages = changes, loads, make(map[pageKey]*page)
		for i, r := range ranks {
			r.shown = loads[i]
		}
	}
	p := m.pages[key]
	if p == nil {
		p = &page{header: http.Header{}, status: http.StatusOK}
		write(p)
		if len(m.pages) < maxPages {
			m.pages[key] = p
		}
	}
	return p
}

// metrics answers with the metrics under the names of the engine that this one is taken for.
func (e *Engine) metrics(x *exchange) error {
	from := e.others
	if e.cfg.exposition() == ExpositionVLLM {
		from = e.registry
	}
	all := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := from.Gather()
		return ofRank(families, x.rank), err
	})
	key := pageKey{x.rank, x.r.Header.Get("Accept"), x.r.Header.Get("Accept-Encoding")}
	p := e.pages.get(key, e.ranks, func(w http.ResponseWriter) {
		promhttp.HandlerFor(all, promhttp.HandlerOpts{}).ServeHTTP(w, x.r)
	})
	maps.Copy(x.w.Header(), p.header)
	x.w.WriteHeader(p.status)
	_, _ = x.w.Write(p.body.Bytes()) // a client that has left
	return nil
}

// ofRank leaves out the series of other ranks; -1 is all.
func ofRank(families []*dto.MetricFamily, rank int) []*dto.MetricFamily {
	if rank < 0 {
		return families
	}
	for _, f := range families {
		f.Metric = slices.DeleteFunc(f.Metric, func(m *dto.Metric) bool {
			return slices.ContainsFunc(m.Label, func(l *dto.LabelPair) bool {
				return (l.GetName() == "engine" || l.GetName() == "dp_rank") && l.GetValue() != strconv.Itoa(rank)
			})
		})
	}
	return families
}

// countedCounter is a counter whose changes are counted.
type countedCounter struct {
	prometheus.Counter
	changes *atomic.Uint64
}

func (c countedCounter) Inc() { c.Add(1) }

func (c countedCounter) Add(n float64) {
	c.Counter.Add(n)
	c.changes.Add(1)
}

// countedObserver is a histogram whose changes are counted.
type countedObserver struct {
	prometheus.Observer
	changes *atomic.Uint64
}

func (o countedObserver) Observe(value float64) {
	o.Observer.Observe(value)
	o.changes.Add(1)
}
