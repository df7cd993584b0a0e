package live

import (
	"context"
	"embed"
	"encoding/json"
	"io/fs"
	"net/http"
	"sync"
	"time"
)

//go:embed page
var page embed.FS

const (
	// Every is the time between two events. A page that is not shown asks for none.
	Every = 2 * time.Second
	// maxPages bounds the pages that are kept current at a time.
	maxPages = 8
	// writeTimeout is how long an event may take to be taken: a reader that stopped reading is left.
	writeTimeout = 10 * time.Second
	// maxModelName bounds the model that a page asks for; engines' names are shorter.
	maxModelName = 512
)

// policy lets the page load what this port serves, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Handler serves the page and its data below /ui/, leads from / to it, and answers for /debug/links.
type Handler struct {
	source Source
	others *others
	mux    *http.ServeMux
	pages  chan struct{} // one for each page that is kept current
	closed chan struct{}
	once   sync.Once
}

// New returns the handler of a source.
func New(source Source) *Handler {
	h := &Handler{source: source, others: newOthers(source.Ask), mux: http.NewServeMux(), pages: make(chan struct{}, maxPages), closed: make(chan struct{})}
	files, err := fs.Sub(page, "page")
	if err != nil {
		panic(err) // the name is that of the directory above
	}
	h.mux.Handle("GET /{$}", http.RedirectHandler("/ui/", http.StatusSeeOther))
	h.mux.Handle("GET /ui/", http.StripPrefix("/ui/", http.FileServerFS(files)))
	h.mux.HandleFunc("GET /ui/state", h.state)
	h.mux.HandleFunc("GET /ui/report", h.report)
	h.mux.HandleFunc("GET /debug/links", h.links)
	h.mux.HandleFunc("GET /ui/events", h.events)
	return h
}

// Close ends the events of all pages and what other gateways are asked, and lets no other begin.
func (h *Handler) Close() {
	h.once.Do(func() { close(h.closed) })
	h.others.close()
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-cache")
	h.mux.ServeHTTP(w, r)
}

// state answers with what the page shows now.
func (h *Handler) state(w http.ResponseWriter, r *http.Request) {
	model, ok := modelOf(w, r)
	if !ok {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(h.whole(r.Context(), model)) // a client that left needs no answer
}

// report answers another gateway with what this one knows.
func (h *Handler) report(w http.ResponseWriter, r *http.Request) {
	model, ok := modelOf(w, r)
	if !ok {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(h.source.Report(model, time.Now()))
}

// links answers with what transfers of KV are believed to take.
func (h *Handler) links(w http.ResponseWriter, r *http.Request) {
	s := h.whole(r.Context(), "")
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(s.list())
}

// whole is the state of all gateways. The others are waited for where nothing is known of them, which
// is a bounded time.
func (h *Handler) whole(ctx context.Context, model string) State {
	answers, known, running := h.others.latest(model, time.Now())
	if !known {
		select {
		case <-running:
			answers, _, _ = h.others.latest(model, time.Now())
		case <-ctx.Done():
		case <-h.closed:
		}
	}
	return merge(model, h.source.Report(model, time.Now()), answers)
}

// events keeps one page current until it is closed, or this gateway ends.
func (h *Handler) events(w http.ResponseWriter, r *http.Request) {
	model, ok := modelOf(w, r)
	if !ok {
		return
	}
	select {
	case h.pages <- struct{}{}:
		defer func() { <-h.pages }()
	default:
		w.Header().Set("Retry-After", "10")
		http.Error(w, "as many pages are open as are kept current at a time", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	h.follow(r.Context(), model, newEventWriter(w))
}

// follow writes what the page shows, again and again: what this gateway knows at once, and what the
// others said last. Nobody waits for a gateway that is slow to answer; the first answers are shown
// when they come.
func (h *Handler) follow(ctx context.Context, model string, out *eventWriter) {
	tick := time.NewTicker(Every)
	defer tick.Stop()
	for {
		select {
		case <-h.closed: // before the page is
			return
		default:
		}
		now := time.Now()
		answers, known, running := h.others.latest(model, now)
		if out.write(merge(model, h.source.Report(model, now), answers)) != nil {
			return // the page is gone
		}
		if known {
			running = nil // they are shown with the next event
		}
		select {
		case <-ctx.Done():
			return
		case <-h.closed:
			return
		case <-running:
		case <-tick.C:
		}
	}
}

// eventWriter writes states as server-sent events.
type eventWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

func newEventWriter(w http.ResponseWriter) *eventWriter {
	return &eventWriter{w, http.NewResponseController(w)}
}

// write writes a state within writeTimeout.
func (e *eventWriter) write(s State) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := e.control.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	for _, part := range [][]byte{[]byte("event: state\ndata: "), data, []byte("\n\n")} {
		if _, err := e.w.Write(part); err != nil {
			return err
		}
	}
	return e.control.Flush()
}

// modelOf is the model that a page asks for, "" for all; where it is no name the request is answered.
func modelOf(w http.ResponseWriter, r *http.Request) (model string, ok bool) {
	model = r.URL.Query().Get("model")
	if len(model) > maxModelName {
		http.Error(w, "the model's name is too long", http.StatusBadRequest)
		return "", false
	}
	return model, true
}
