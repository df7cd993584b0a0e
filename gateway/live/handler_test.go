package live

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"
)

func copyTo(w io.Writer, resp *http.Response) (int64, error) { return io.Copy(w, resp.Body) }

// reader is a page that is kept current, on the port's side.
type reader struct {
	header  http.Header
	status  int
	fails   error
	stalled bool // it takes nothing: a write lasts until the deadline

	mu      sync.Mutex // guards what follows, which tests look at while it is written
	written strings.Builder
	until   time.Time // the deadline of what is written
}

// seen is what was written so far, and until when the last of it was to be taken.
func (r *reader) seen() (text string, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.written.String(), r.until
}

func (r *reader) text() string {
	text, _ := r.seen()
	return text
}

func (r *reader) Header() http.Header    { return r.header }
func (r *reader) WriteHeader(status int) { r.status = status }
func (r *reader) Flush()                 {}

func (r *reader) SetWriteDeadline(at time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.until = at
	return nil
}

func (r *reader) Write(p []byte) (int, error) {
	if r.stalled {
		_, until := r.seen()
		time.Sleep(time.Until(until))
		return 0, context.DeadlineExceeded
	}
	if r.fails != nil {
		return 0, r.fails
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.written.Write(p)
}

// opened is a page that asked for its events; done is closed when it gets no more.
func opened(ctx context.Context, h *Handler, r *reader) (done <-chan struct{}) {
	r.header = make(http.Header)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.ServeHTTP(r, httptest.NewRequestWithContext(ctx, http.MethodGet, "/ui/events?model=m", nil))
	}()
	return ended
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// A page gets a state at once and one every two seconds, until it is closed; each has its own time to
// be taken.
func TestEvents_OneEveryTwoSeconds(t *testing.T) {
	s := sourceOf(t)
	synctest.Test(t, func(t *testing.T) {
		h := New(s)
		ctx, leave := context.WithCancel(t.Context())
		var page reader
		done := opened(ctx, h, &page)
		for want := 1; want <= 3; want++ {
			synctest.Wait()
			text, until := page.seen()
			sent := strings.Split(strings.TrimSuffix(text, "\n\n"), "\n\n")
			data, ok := strings.CutPrefix(sent[len(sent)-1], "event: state\ndata: ")
			if len(sent) != want || !ok || gjson.Get(data, "history.model").String() != "m" || page.header.Get("Content-Type") != "text/event-stream" {
				t.Fatalf("%d events, the last one %.60q", len(sent), sent[len(sent)-1])
			}
			if left := time.Until(until); left != writeTimeout {
				t.Errorf("event %d is to be taken within %v", want, left)
			}
			time.Sleep(Every)
		}
		leave()
		synctest.Wait()
		if !isClosed(done) {
			t.Error("it goes on when the page is closed")
		}
	})
}

// The end of the gateway ends all pages at once, and none begins after it.
func TestEvents_EndWithTheGateway(t *testing.T) {
	s := sourceOf(t)
	synctest.Test(t, func(t *testing.T) {
		h := New(s)
		var first, late reader
		done := opened(t.Context(), h, &first)
		synctest.Wait()
		h.Close()
		h.Close() // twice is as good as once
		synctest.Wait()
		if !isClosed(done) || first.text() == "" {
			t.Error("the page goes on")
		}
		<-opened(t.Context(), h, &late)
		if late.text() != "" {
			t.Errorf("one begins after the end: %.60q", late.text())
		}
	})
}

// A page that takes nothing any more is left after ten seconds, one whose connection is lost at once;
// both make room.
func TestEvents_APageThatDoesNotReadIsLeft(t *testing.T) {
	s := sourceOf(t)
	synctest.Test(t, func(t *testing.T) {
		h := New(s)
		begun := time.Now()
		<-opened(t.Context(), h, &reader{stalled: true})
		if took := time.Since(begun); took != writeTimeout {
			t.Errorf("a stalled one is left after %v", took)
		}
		<-opened(t.Context(), h, &reader{fails: errors.New("connection reset")})
		if took := time.Since(begun); took != writeTimeout || len(h.pages) != 0 {
			t.Errorf("a lost one is left after %v, %d places are taken", took-writeTimeout, len(h.pages))
		}
	})
}

// No more than eight pages are kept current: a further one is told to come back, and is served when
// one has been closed.
func TestEvents_AreBoundedInPages(t *testing.T) {
	s := sourceOf(t)
	synctest.Test(t, func(t *testing.T) {
		h := New(s)
		first, leave := context.WithCancel(t.Context())
		others, leaveAll := context.WithCancel(t.Context())
		defer leaveAll()
		opened(first, h, new(reader))
		for range maxPages - 1 {
			opened(others, h, new(reader))
		}
		synctest.Wait()
		var ninth reader
		<-opened(others, h, &ninth)
		if ninth.status != http.StatusServiceUnavailable || ninth.header.Get("Retry-After") == "" {
			t.Errorf("the ninth: %d", ninth.status)
		}
		leave()
		synctest.Wait()
		var next reader
		opened(others, h, &next)
		synctest.Wait()
		if next.text() == "" {
			t.Error("the place of a closed page stays taken")
		}
		h.Close()
		synctest.Wait()
	})
}

// While nobody looks nothing is worked out.
func TestEvents_NothingIsWorkedOutWhileNobodyLooks(t *testing.T) {
	s := sourceOf(t)
	var mu sync.Mutex
	asked := 0
	s.Scaling = func() []Pool {
		mu.Lock()
		defer mu.Unlock()
		asked++
		return nil
	}
	synctest.Test(t, func(t *testing.T) {
		h := New(s)
		time.Sleep(time.Hour)
		ctx, leave := context.WithCancel(t.Context())
		opened(ctx, h, new(reader))
		time.Sleep(Every + Every/2)
		leave()
		time.Sleep(time.Hour)
		mu.Lock()
		defer mu.Unlock()
		if asked != 2 {
			t.Errorf("worked out %d times for a page that got two states", asked)
		}
	})
}

// The page and what it needs come from this port, and the policy lets it ask nobody else: its files
// name no other host, and have no script or style in the markup.
func TestPage_AsksThisPortAlone(t *testing.T) {
	h := New(sourceOf(t))
	for path, kind := range map[string]string{"/ui/": "text/html", "/ui/app.js": "text/javascript", "/ui/style.css": "text/css", "/ui/icon.svg": "image/svg+xml"} {
		resp := get(t, h, path)
		if resp.StatusCode != 200 || !strings.HasPrefix(resp.Header.Get("Content-Type"), kind) || resp.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d %v", path, resp.StatusCode, resp.Header)
		}
		if csp := resp.Header.Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none'; ") || strings.Contains(csp, "unsafe") || strings.Contains(csp, "*") {
			t.Errorf("%s: policy %q", path, csp)
		}
		text := body(t, resp)
		if host := regexp.MustCompile(`(https?:)?//[a-z0-9.-]+\.[a-z]+`).FindString(strings.ReplaceAll(text, "http://www.w3.org/2000/svg", "")); host != "" {
			t.Errorf("%s names %s", path, host)
		}
		if inline := regexp.MustCompile(`<script>|<style|\sstyle=|\son[a-z]+="|innerHTML|eval\(`).FindString(text); inline != "" {
			t.Errorf("%s has %q", path, inline)
		}
	}
	if resp := get(t, h, "/"); resp.StatusCode != http.StatusSeeOther || resp.Header.Get("Location") != "/ui/" {
		t.Errorf("/ answers %d %v", resp.StatusCode, resp.Header)
	}
	for path, want := range map[string]int{"/other": 404, "/ui/none.js": 404, "/ui/../handler.go": 404, "/ui/state?model=" + strings.Repeat("m", 600): 400, "/ui/events?model=" + strings.Repeat("m", 600): 400} {
		if resp := get(t, h, path); resp.StatusCode != want && resp.StatusCode != http.StatusMovedPermanently && resp.StatusCode != http.StatusTemporaryRedirect {
			t.Errorf("%s answers %d, want %d", path, resp.StatusCode, want)
		}
	}
}

// Everything that the page's directory has is small, and is needed.
func TestPage_IsSmall(t *testing.T) {
	total := int64(0)
	err := fs.WalkDir(page, ".", func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		total += info.Size()
		return err
	})
	if err != nil || total > 64<<10 {
		t.Errorf("%d bytes, %v", total, err)
	}
}

// The state is there without a stream too, for commands.
func TestState_IsServedAsJSON(t *testing.T) {
	resp := get(t, New(sourceOf(t)), "/ui/state?model=m")
	text := body(t, resp)
	if resp.Header.Get("Content-Type") != "application/json" || gjson.Get(text, "history.model").String() != "m" || gjson.Get(text, "gateway.version").String() != "v1" {
		t.Errorf("%v %.200s", resp.Header, text)
	}
}
