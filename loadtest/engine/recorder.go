package engine

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Limits of what the recorder keeps.
const (
	recordedRequests = 256
	recordedBody     = 64 << 10 // bytes of each
	recordedPaths    = 64       // distinct; all others count as "other"
)

// Request is one POST that reached the engine, for tests of what a gateway sends.
type Request struct {
	Time        time.Time `json:"time"`
	Path        string    `json:"path"`
	RequestID   string    `json:"x_request_id"`
	Traceparent string    `json:"traceparent"`
	// HeaderNames are canonical and sorted. No values: they may hold keys.
	HeaderNames []string `json:"header_names"`
	// Body is as received, cut after 64 KiB. BodyBytes is its true length.
	Body      string `json:"body"`
	BodyBytes int    `json:"body_bytes"`
}

// recorder keeps the latest requests and counts them by path.
type recorder struct {
	mu     sync.Mutex
	latest []Request // a ring once it is full
	total  int
	paths  map[string]int
}

func newRecorder() *recorder { return &recorder{paths: map[string]int{}} }

// count one request of a path.
func (c *recorder) count(path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.paths[path]; !known && len(c.paths) >= recordedPaths {
		path = "other"
	}
	c.paths[path]++
}

// record keeps a request with its body.
func (c *recorder) record(r *http.Request, body []byte) {
	request := Request{
		Time:        time.Now(),
		Path:        r.URL.Path,
		RequestID:   r.Header.Get("X-Request-Id"),
		Traceparent: r.Header.Get("Traceparent"),
		Body:        strings.Clone(string(body[:min(len(body), recordedBody)])),
		BodyBytes:   len(body),
	}
	for name := range r.Header {
		request.HeaderNames = append(request.HeaderNames, name)
	}
	slices.Sort(request.HeaderNames)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.latest) < recordedRequests {
		c.latest = append(c.latest, request)
	} else {
		c.latest[c.total%recordedRequests] = request
	}
	c.total++
}

// list returns the requests kept, oldest first, and the counts by path.
func (c *recorder) list() ([]Request, map[string]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	latest := []Request{}
	if c.total > recordedRequests {
		latest = append(latest, c.latest[c.total%recordedRequests:]...)
		latest = append(latest, c.latest[:c.total%recordedRequests]...)
	} else {
		latest = append(latest, c.latest...)
	}
	paths := map[string]int{}
	for path, n := range c.paths {
		paths[path] = n
	}
	return latest, paths
}
