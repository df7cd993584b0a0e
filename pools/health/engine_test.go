package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/testlog"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/load"
)

// A process that died refuses connections; one that listens, hangs or is somewhere else does
// not.
func TestRefusesConnections(t *testing.T) {
	listens := httptest.NewServer(http.NotFoundHandler())
	defer listens.Close()
	ended := httptest.NewServer(http.NotFoundHandler())
	ended.Close()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name, url string
		ctx       context.Context
		want      bool
	}{
		{"it listens", listens.URL, t.Context(), false},
		{"it has ended", ended.URL, t.Context(), true},
		{"the caller has left", ended.URL, gone, false},
		{"its name is not known", "http://nowhere.invalid:1", t.Context(), false},
		{"no address", "http://10.0.0.1:x", t.Context(), false},
	} {
		if got := RefusesConnections(c.ctx, pools.NewServer(spec(c.url, pools.Decode))); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// A process that is ending may listen yet when it is first asked.
func TestRefusesConnections_OneThatIsEndingIsAskedTwice(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			err = errors.Join(conn.Close(), listener.Close())
		}
		ended <- err
	}()
	if !RefusesConnections(t.Context(), pools.NewServer(spec("http://"+listener.Addr().String(), pools.Decode))) {
		t.Error("it is taken to listen")
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// answer is a transport with one answer to everything, whose body notes that it is closed.
type answer struct {
	status int
	ends   error
	mu     sync.Mutex // guards closed
	closed bool
}

func (a *answer) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: a.status, Header: http.Header{}, Body: a, Request: req}, nil
}
func (a *answer) Read([]byte) (int, error) { return 0, a.ends }
func (a *answer) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	return nil
}

// Any answer is a sign of life, whatever is in it, and it is closed; only a whole one with
// status 200 has a page.
func TestEngine_Get(t *testing.T) {
	for _, c := range []struct {
		status int
		ends   error
		want   string // in the error
	}{
		{200, io.EOF, ""},
		{200, io.ErrUnexpectedEOF, "unexpected EOF"},
		{404, io.EOF, "/health answered 404"},
		{302, io.EOF, "/health answered 302"},
	} {
		s, a := pools.NewServer(spec("http://10.0.0.1:1", pools.Decode)), &answer{status: c.status, ends: c.ends}
		s.ProbePassed(s.Health(), []pools.Model{{ID: "m"}}, time.Now())
		s.RecordLate(time.Now().Add(time.Hour))
		e := engine{server: s, transport: a}
		_, err := e.get(t.Context(), "/health")
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d that ends with %v: %v", c.status, c.ends, err)
		}
		if s.State() != pools.Alive || !a.closed {
			t.Errorf("%d that ends with %v: %v, closed %v", c.status, c.ends, s.State(), a.closed)
		}
		if _, err := e.get(t.Context(), "http://10.0.0.1:x"); err == nil {
			t.Error("what is no address has a page")
		}
	}
}

// A question has its time limit in time in which this process runs, and no other: an answer that was there
// while the process was stopped is read when it goes on.
func TestEngine_AQuestionEndsByOwnTimeAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		byClock := false
		silent := roundTripper(func(req *http.Request) (*http.Response, error) {
			_, byClock = req.Context().Deadline()
			<-req.Context().Done()
			return nil, req.Context().Err()
		})
		const limit = 2 * time.Second
		e, asked := engine{pools.NewServer(spec("http://10.0.0.1:1", pools.Decode)), silent, limit}, time.Now()
		if _, err := e.get(t.Context(), "/metrics"); !isTimeout(err) || absent(err) {
			t.Errorf("it ends with %v", err)
		}
		if took := time.Since(asked); took != limit || byClock {
			t.Errorf("it ends after %v, want %v; by the clock on the wall: %v", took, limit, byClock)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := e.get(gone, "http://10.0.0.1:1/metrics"); !errors.Is(err, context.Canceled) {
			t.Errorf("whoever asked has left: %v", err)
		}
	})
}

// What probes end with is told apart by its cause, however it is wrapped.
func TestErrors_AreDistinguishedByTheirCause(t *testing.T) {
	status := func(code int) error { return fmt.Errorf("probe: %w", statusError{"/health", code}) }
	lost := &net.DNSError{Err: "server misbehaving", Name: "a"}
	for _, c := range []struct {
		err                    error
		absent, key, out, late bool
		reason                 string
	}{
		{status(399), false, false, false, false, "/health answered 399"},
		{status(400), true, false, false, false, "/health answered 400"},
		{status(401), true, true, false, false, "/health answered 401"},
		{status(403), true, true, false, false, "/health answered 403"},
		{status(404), true, false, false, false, "/health answered 404"},
		{status(499), true, false, false, false, "/health answered 499"},
		{status(500), false, false, false, false, "/health answered 500"},
		{fmt.Errorf("a: %w", context.DeadlineExceeded), false, false, false, true, "probe timed out"},
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}, false, false, false, false, "connection refused"},
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}, false, false, true, false, "too many open files"},
		{lost, false, false, false, true, "probe timed out"},
		{&net.DNSError{Err: "no such host", Name: "a", IsNotFound: true}, false, false, false, false, "lookup a: no such host"},
		{io.EOF, false, false, false, false, "EOF"},
	} {
		if absent(c.err) != c.absent || AsksForKey(c.err) != c.key || outOfDescriptors(c.err) != c.out || isLate(c.err) != c.late || reason(c.err) != c.reason {
			t.Errorf("%v: absent %v, key %v, descriptors %v, late %v, %q", c.err, absent(c.err), AsksForKey(c.err), outOfDescriptors(c.err), isLate(c.err), reason(c.err))
		}
	}
}

// What is known of one server is bounded; the rest is counted, and nothing is no list.
func TestParseModels_IsBounded(t *testing.T) {
	list := func(ids ...string) []byte {
		return []byte(`{"data":[{"id":"` + strings.Join(ids, `"},{"id":"`) + `"}]}`)
	}
	many := make([]string, maxModels+2)
	for i := range many {
		many[i] = fmt.Sprintf("m%d", i)
	}
	long := strings.Repeat("x", maxModelID)
	for _, c := range []struct {
		name        string
		body        []byte
		known, more int
		fails       bool
	}{
		{"as many as may be", list(many[:maxModels]...), maxModels, 0, false},
		{"two more", list(many...), maxModels, 2, false},
		{"a long name", list(long), 1, 0, false},
		{"a longer one", list("m", long+"x"), 1, 1, false},
		{"a long base", []byte(`{"data":[{"id":"m"},{"id":"a","parent":"` + long + `"}]}`), 2, 0, false},
		{"a longer base", []byte(`{"data":[{"id":"m"},{"id":"a","parent":"` + long + `x"}]}`), 1, 1, false},
		{"one without a name", list("", "m"), 1, 0, false},
		{"one that would write to a terminal", list("m", `\u001b[2Jn`), 1, 1, false},
		{"only such", list("", ""), 0, 0, true},
		{"only longer ones", list(long + "x"), 0, 1, true},
		{"an empty list", []byte(`{"data":[]}`), 0, 0, true},
		{"no list", []byte(`<html>`), 0, 0, true},
	} {
		models, more, err := parseModels(c.body)
		if len(models) != c.known || more != c.more || (err != nil) != c.fails {
			t.Errorf("%s: %d known, %d left out, %v", c.name, len(models), more, err)
		}
	}
}

// The probe of a server by hand goes by its health, its models and no more.
func TestProbe_SaysWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		health, models int
		list           string
		want           string
	}{
		{200, 200, vllmModels, ""},
		{503, 200, vllmModels, "/health answered 503"},
		{200, 401, vllmModels, "/v1/models answered 401"},
		{200, 200, `{"data":[]}`, "names no model"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/health":
				w.WriteHeader(c.health)
			case "/v1/models":
				w.WriteHeader(c.models)
				_, _ = io.WriteString(w, c.list)
			case "/metrics":
				_, _ = io.WriteString(w, "vllm:num_requests_running 7\n")
			}
		}))
		probed, err := Probe(t.Context(), spec(server.URL, pools.Both), pools.Default(), server.Client().Transport, slog.New(slog.DiscardHandler))
		server.Close()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
		if err == nil && (!probed.Health().Serves("m") || !probed.Health().Up || probed.Load.Running.Value != 7) {
			t.Errorf("%+v, %+v", probed.Health(), probed.Load)
		}
	}
}

// Where an engine reports another connector or role than is configured, that is said once, when
// it is asked, and not where there is nothing to compare.
func TestIdentify_WarnsOfWhatDiffersFromTheConfiguration(t *testing.T) {
	for _, c := range []struct {
		configured string
		role       pools.Role
		mode       string
		want       []string
	}{
		{"sglang", pools.Prefill, "prefill", nil},
		{"sglang", pools.Decode, "prefill", []string{"another role", "configured=decode", "engine=prefill"}},
		{"nixl", pools.Decode, "decode", []string{"another connector", "configured=nixl", "engine=sglang"}},
		{"", pools.Decode, "decode", nil},
		{"aggregated", pools.Decode, "decode", nil},
		{"sglang", pools.Both, "null", []string{"another connector", "engine=aggregated"}},
		{"nixl", pools.Both, "unknown", nil},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/server_info" {
				http.NotFound(w, r)
				return
			}
			_, _ = fmt.Fprintf(w, `{"version":"0.5","disaggregation_mode":%q,"page_size":0}`, c.mode)
		}))
		var log testlog.Buffer
		s := pools.NewServer(pools.Spec{URL: server.URL, Role: c.role, Connector: c.configured})
		e := engine{server: s, transport: server.Client().Transport}
		for _, wasUp := range []bool{false, true, true} {
			e.identify(t.Context(), wasUp, []pools.Model{{ID: "m", Owner: "sglang"}}, slog.New(slog.NewTextHandler(&log, nil)))
		}
		server.Close()
		said := log.Take()
		if strings.Count(said, "\n") != min(1, len(c.want)) {
			t.Errorf("%+v: %s", c, said)
		}
		for _, part := range c.want {
			if !strings.Contains(said, part) {
				t.Errorf("%+v: %q is not in %s", c, part, said)
			}
		}
		if got := s.Identity(); got.BlockTokens != "" || !s.Identified() {
			t.Errorf("pages of no tokens: %+v, identified %v", got, s.Identified())
		}
	}
}

// An engine whose version or cache could not be asked for is asked again.
func TestIdentify_AskedAgainWhileAnAnswerIsMissing(t *testing.T) {
	for _, missing := range []string{"/version", "/metrics", "/server_info"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == missing {
				w.WriteHeader(http.StatusInternalServerError)
			} else {
				http.NotFound(w, r)
			}
		}))
		for connector, whole := range map[string]bool{"": false, "nixl": missing == "/server_info"} {
			s := pools.NewServer(pools.Spec{URL: server.URL, Role: pools.Both, Connector: connector})
			engine{server: s, transport: server.Client().Transport}.identify(t.Context(), false, []pools.Model{{ID: "m", Owner: "vllm"}}, slog.New(slog.DiscardHandler))
			if s.Identified() != whole {
				t.Errorf("without %s, connector %q: identified %v", missing, connector, s.Identified())
			}
		}
		server.Close()
	}
}

// Each change of a server's life is said once, as what it is.
func TestProber_SaysEachChangeOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testlog.Buffer
		var status atomic.Int64
		var hangs atomic.Bool
		answers := func(code int64) func() { return func() { hangs.Store(false); status.Store(code) } }
		silent := func() { hangs.Store(true) }
		transport := roundTripper(func(req *http.Request) (*http.Response, error) {
			if hangs.Load() {
				<-req.Context().Done()
				return nil, req.Context().Err()
			}
			body, code := "", int(status.Load())
			if req.URL.Path == "/v1/models" {
				body, code = vllmModels, 200
			}
			return &http.Response{StatusCode: code, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: req}, nil
		})
		s := pools.NewServer(spec("http://10.0.0.1:1", pools.Decode))
		p := newProber(engine{server: s, transport: transport}, newSlowHealth(), pools.Default(), load.NewPages(nil), slog.New(slog.NewTextHandler(&log, nil)))
		answers(503)()
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			p.run(ctx)
		}()
		for i, step := range []struct {
			do   func()
			want string
		}{
			{answers(503), `level=INFO msg="server not up" role=decode reason="/health answered 503"`},
			{answers(401), `level=WARN msg="server down: the engine wants a key`},
			{answers(200), `level=INFO msg="server up" role=decode models=[m]`},
			{silent, `level=WARN msg="server unresponsive: a probe is late" role=decode`},
			{answers(500), `level=WARN msg="server down" role=decode reason="/health answered 500"`},
			{answers(200), `level=INFO msg="server up"`},
			{silent, `level=WARN msg="server unresponsive`},
			{answers(403), `level=WARN msg="server down: the engine wants a key`},
			{answers(200), `level=INFO msg="server up"`},
			// A request notices first.
			{func() { answers(503)(); s.MarkDown("connection lost and refused") }, `level=WARN msg="server down" role=decode reason="/health answered 503"`},
		} {
			step.do()
			time.Sleep(3*pools.Default().ProbeTimeout + 3*pools.Default().ProbeInterval) // for some probes, late or not
			if said := log.Take(); !strings.Contains(said, step.want) || strings.Count(said, "\n") != 1 {
				t.Errorf("step %d: want %s once, got %s", i, step.want, said)
			}
		}
		end()
		<-ended
	})
}

// A server on shared GPUs is asked whether it sleeps, and only such; what cannot be read says
// nothing.
func TestProber_AsksWhetherAServerSleeps(t *testing.T) {
	asked, body, code := 0, "", 200
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/is_sleeping" {
			asked++
			w.WriteHeader(code)
			_, _ = io.WriteString(w, body)
		}
	}))
	defer server.Close()
	s := pools.NewServer(spec(server.URL, pools.Decode))
	e := engine{server: s, transport: server.Client().Transport}
	if e.sleeping(t.Context()); asked > 0 {
		t.Error("one with GPUs of its own is asked")
	}
	s.GPUs = "a"
	for i, c := range []struct {
		code int
		body string
		want bool
	}{{200, `{"is_sleeping":true}`, true}, {200, `nonsense`, true}, {404, `{"is_sleeping":false}`, true}, {200, `{"is_sleeping":false}`, false}, {500, `{"is_sleeping":true}`, false}} {
		code, body = c.code, c.body
		e.sleeping(t.Context())
		if asleep, _ := s.GPUShare().Asleep(); asleep != c.want {
			t.Errorf("answer %d: asleep %v", i, asleep)
		}
	}
}

// A list of models that is what it was is not parsed again; one that differs is, and so is what follows what was none.
func TestProber_ModelsAreReadAgainWhereTheListDiffers(t *testing.T) {
	body := ""
	transport := roundTripper(func(req *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(body)), Request: req}, nil
	})
	e := engine{server: pools.NewServer(spec("http://10.0.0.1:1", pools.Decode)), transport: transport}
	p := newProber(e, newSlowHealth(), pools.Default(), load.NewPages(nil), slog.New(slog.DiscardHandler))
	listing := func(ids ...string) string { return `{"data":[{"id":"` + strings.Join(ids, `"},{"id":"`) + `"}]}` }
	for i, c := range []struct {
		body string
		want string // names, or part of the error
	}{
		{listing("m"), "m"}, {listing("m"), "m"}, {listing("m", "adapter"), "m adapter"}, {`{"data":`, "not a model list"}, {`{"data":`, "not a model list"},
		{listing("m", "adapter"), "m adapter"}, {listing("m"), "m"}, {listing("M"), "M"},
		{listing("x", "y", strings.Repeat("z", maxModelID+maxSparePage)), "x y"}, {listing("m"), "m"},
	} {
		body = c.body
		models, err := p.models(t.Context())
		got := strings.Join(modelIDs(models), " ")
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) || err == nil && got != c.want {
			t.Errorf("list %d: %.80s, want %.80s", i, got, c.want)
		}
	}
	first, _ := p.models(t.Context())
	if again, _ := p.models(t.Context()); &first[0] != &again[0] {
		t.Error("the same list is parsed twice")
	}
}
