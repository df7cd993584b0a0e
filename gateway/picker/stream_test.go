package picker

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tandem-gateway/tandem/pools"
)

var errLost = errors.New("the connection to the proxy was lost")

// losing is a stream whose connection is lost with a certain answer, or behind its last message.
type losing struct {
	played
	losesAnswer int           // counted from 1; 0 is none
	answered    chan struct{} // closed with the first answer
	sent        []*extproc.ProcessingResponse
}

func (l *losing) Send(m *extproc.ProcessingResponse) error {
	if l.sent = append(l.sent, m); len(l.sent) == 1 {
		close(l.answered)
	}
	if len(l.sent) == l.losesAnswer {
		return errLost
	}
	return nil
}

func (l *losing) SendMsg(m any) error {
	data, err := newCodec().Marshal(m)
	if err != nil {
		return err
	}
	answer := &extproc.ProcessingResponse{}
	if err := proto.Unmarshal(data.Materialize(), answer); err != nil {
		return err
	}
	return l.Send(answer)
}

func (l *losing) RecvMsg(to any) error {
	if len(l.messages) > 0 {
		return l.played.RecvMsg(to)
	}
	<-l.answered // else it would be lost amid the choice
	return errLost
}

// process plays messages to a picker, and returns what it answers.
func (f *pickerFixture) process(losesAnswer int, messages ...*extproc.ProcessingRequest) ([]*extproc.ProcessingResponse, error) {
	f.t.Helper()
	l := &losing{played: played{ctx: f.t.Context(), messages: messages}, losesAnswer: losesAnswer, answered: make(chan struct{})}
	err := (&processor{gateway: f.gateway, log: slog.New(slog.DiscardHandler)}).Process(l)
	f.pd.Wait()
	f.nothingHeld()
	return l.sent, err
}

func requestHead(method, path string, end bool) *extproc.ProcessingRequest {
	return &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{
		Headers: headerList(":method", method, ":path", path), EndOfStream: end,
	}}}
}

func requestBody(body []byte, end bool) *extproc.ProcessingRequest {
	return &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestBody{RequestBody: &extproc.HttpBody{Body: body, EndOfStream: end}}}
}

func responseHead(status string, end bool) *extproc.ProcessingRequest {
	return &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extproc.HttpHeaders{
		Headers: headerList(":status", status, "content-type", "text/event-stream"), EndOfStream: end,
	}}}
}

func responseBody(body string, end bool) *extproc.ProcessingRequest {
	return &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseBody{ResponseBody: &extproc.HttpBody{Body: []byte(body), EndOfStream: end}}}
}

var (
	endOfRequest  = &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestTrailers{RequestTrailers: &extproc.HttpTrailers{}}}
	endOfResponse = &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extproc.HttpTrailers{}}}
)

// conversations are those of a proxy that is in step, with how many answers each gets.
func conversations() map[string]struct {
	messages []*extproc.ProcessingRequest
	answers  int
} {
	chat, streaming := chatOf(10, ""), chatOf(10, `,"stream":true`)
	type talk = struct {
		messages []*extproc.ProcessingRequest
		answers  int
	}
	all := func(m ...*extproc.ProcessingRequest) []*extproc.ProcessingRequest { return m }
	return map[string]talk{
		"an answer": {all(requestHead("POST", chatPath, false), requestBody(chat, true), responseHead("200", false), responseBody(eventOf("a"), false), responseBody("data: [DONE]\n\n", true)), 5},
		"trailers on both sides": {all(requestHead("POST", chatPath, false), requestBody(streaming, false), endOfRequest, responseHead("200", false), responseBody(eventOf("a"), false),
			responseBody("data: {", false), endOfResponse), 7},
		"a body in many messages": {all(requestHead("POST", chatPath, false), requestBody(chatOf(3*longestPiece, ""), true), responseHead("200", true)), 6},
		"an answer in many messages": {all(requestHead("POST", chatPath, false), requestBody(chat, true), responseHead("200", false),
			responseBody(strings.Repeat(" ", 2*longestPiece+1), true)), 6},
		"no body":                    {all(requestHead("GET", "/v1/models", true), responseHead("200", false), responseBody("{}", false), endOfResponse), 4},
		"no body, and no answer's":   {all(requestHead("GET", "/v1/models", true), responseHead("204", true)), 2},
		"a path that is not there":   {all(requestHead("POST", "/v1/nothing", false)), 1},
		"a body that is too long":    {all(requestHead("POST", chatPath, false), requestBody(make([]byte, 33<<20), false)), 1},
		"a body that is refused":     {all(requestHead("POST", chatPath, false), requestBody([]byte(`{`), true), endOfRequest), 1},
		"trailers of a refused body": {all(requestHead("POST", chatPath, false), requestBody([]byte(`{`), false), endOfRequest, endOfRequest), 1},
		"a POST without a body":      {all(requestHead("POST", chatPath, true), endOfRequest), 1},
	}
}

// Whichever answer does not reach the proxy ends the stream with that error, and nothing stays
// held; where all do a stream ends in order.
func TestProcess_AnAnswerThatIsLost(t *testing.T) {
	f := newPicker(t, setup{specs: []pools.Spec{{URL: upServer(t), Role: pools.Both, Connector: "aggregated"}}})
	f.eventually("its server is up", func() bool { return f.fleet.Servers()[0].Health().Up })
	for name, c := range conversations() {
		sent, err := f.process(0, c.messages...)
		if len(sent) != c.answers || err != nil {
			t.Errorf("%s: %d answers, want %d, %v: %v", name, len(sent), c.answers, err, sent)
		}
		for lost := 1; lost <= c.answers; lost++ {
			if sent, err := f.process(lost, c.messages...); !errors.Is(err, errLost) || len(sent) != lost {
				t.Errorf("%s: answer %d is lost: %d answers, %v", name, lost, len(sent), err)
			}
		}
	}
}

// A connection that is lost between two messages ends the stream with that error.
func TestProcess_AMessageThatIsLost(t *testing.T) {
	f := newPicker(t, setup{specs: []pools.Spec{{URL: upServer(t), Role: pools.Both, Connector: "aggregated"}}})
	f.eventually("its server is up", func() bool { return f.fleet.Servers()[0].Health().Up })
	_, err := f.process(0, requestHead("POST", chatPath, false), requestBody(chatOf(10, ""), true))
	if !errors.Is(err, errLost) {
		t.Errorf("where the answer would come: %v", err)
	}
	if _, err := f.process(0, requestHead("GET", "/v1/models", true)); !errors.Is(err, errLost) {
		t.Errorf("of one without a body: %v", err)
	}
	for name, messages := range map[string][]*extproc.ProcessingRequest{
		"a body before its request":    {requestBody([]byte("{}"), true)},
		"a second request":             {requestHead("POST", chatPath, false), requestHead("POST", chatPath, false)},
		"a message of an unknown kind": {{}},
	} {
		if _, err := f.process(0, messages...); err == nil || errors.Is(err, errLost) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An answer that is only a head has ended with it.
func TestProcess_AnAnswerWithoutABody(t *testing.T) {
	for status, outcome := range map[string]string{"200": "broken_stream", "500": "error", "422": "refused"} {
		f := newPicker(t, setup{specs: []pools.Spec{{URL: upServer(t), Role: pools.Both, Connector: "aggregated"}}})
		f.eventually("its server is up", func() bool { return f.fleet.Servers()[0].Health().Up })
		if _, err := f.process(0, requestHead("POST", chatPath, false), requestBody(chatOf(10, ""), true), responseHead(status, true)); err != nil || f.requests(outcome) != 1 {
			t.Errorf("%s: %v, %v are counted as %s", status, err, f.requests(outcome), outcome)
		}
	}
}

// Trailers bring what was held back of a stream whose usage is hidden, and end it.
func TestProcess_TrailersBringTheRest(t *testing.T) {
	f := newPicker(t, setup{specs: []pools.Spec{{URL: upServer(t), Role: pools.Both, Connector: "aggregated"}}})
	f.eventually("its server is up", func() bool { return f.fleet.Servers()[0].Health().Up })
	sent, err := f.process(0, requestHead("POST", chatPath, false), requestBody(chatOf(10, `,"stream":true`), true), responseHead("200", false), responseBody(eventOf("a")+"data: {", false), endOfResponse)
	if err != nil || len(sent) != 6 {
		t.Fatalf("%v, %v", sent, err)
	}
	body := func(m *extproc.ProcessingResponse) string {
		return string(m.GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody())
	}
	if body(sent[3]) != eventOf("a") || body(sent[4]) != "data: {" || sent[5].GetResponseTrailers() == nil {
		t.Errorf("the client gets %q, %q and %v", body(sent[3]), body(sent[4]), sent[5])
	}
}

// A header's value is in one of two fields, its name in any case; of several the first counts.
func TestHeaders_Get(t *testing.T) {
	h := headersOf(&corev3.HeaderMap{Headers: []*corev3.HeaderValue{
		{Key: "a", Value: "text"}, {Key: "b", RawValue: []byte("raw"), Value: "text"}, {Key: "b", RawValue: []byte("second")}, {Key: "ab"},
	}})
	for name, want := range map[string]string{"a": "text", "A": "text", "b": "raw", "ab": "", "c": "or else", "": "or else"} {
		if got := h.Get(name, "or else"); got != want {
			t.Errorf("%q is %q, want %q", name, got, want)
		}
	}
	if got := statusOf(headers{{":status", "x"}}); got != 0 {
		t.Errorf("no status is %d", got)
	}
	if got := answerHeader(headers{{"content-type", "a"}, {"retry-after", "7"}, {"set-cookie", "b"}}); len(got) != 2 || got.Get("Content-Type") != "a" || got.Get("Retry-After") != "7" {
		t.Errorf("of an answer's headers these are read: %v", got)
	}
}

// What Envoy shows of an answer depends on the mode that it says.
func TestShown(t *testing.T) {
	for mode, name := range filterv3.ProcessingMode_BodySendMode_name {
		want := map[string]int{"FULL_DUPLEX_STREAMED": 0, "NONE": 2}
		kind, listed := want[name]
		if !listed {
			kind = 1
		}
		if got := shown(filterv3.ProcessingMode_BodySendMode(mode)); int(got) != kind {
			t.Errorf("%s: %d, want %d", name, got, kind)
		}
	}
}

// watching is a client of health checks.
type watching struct {
	healthpb.Health_WatchServer
	ctx context.Context
	err error // of sending

	mu   sync.Mutex // guards told
	told []healthpb.HealthCheckResponse_ServingStatus
}

func (w *watching) Context() context.Context { return w.ctx }

func (w *watching) Send(r *healthpb.HealthCheckResponse) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, r.GetStatus())
	return w.err
}

// A client that watches is told how it is, and then each change within a second, until it leaves
// or cannot be reached.
func TestHealthChecks_Watch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ready atomic.Bool
		h := &healthChecks{ready: ready.Load}
		ctx, leave := context.WithCancel(t.Context())
		watch := func(service string, err error) (*watching, chan error) {
			w, ended := &watching{ctx: ctx, err: err}, make(chan error, 1)
			go func() { ended <- h.Watch(&healthpb.HealthCheckRequest{Service: service}, w) }()
			synctest.Wait()
			return w, ended
		}
		told := func(w *watching, want ...healthpb.HealthCheckResponse_ServingStatus) {
			t.Helper()
			synctest.Wait()
			w.mu.Lock()
			defer w.mu.Unlock()
			if len(w.told) != len(want) || w.told[len(want)-1] != want[len(want)-1] {
				t.Errorf("it is told %v, want %v", w.told, want)
			}
		}
		w, ended := watch("readiness", nil)
		unknown, unknownEnded := watch("other", nil)
		const not, serving = healthpb.HealthCheckResponse_NOT_SERVING, healthpb.HealthCheckResponse_SERVING
		told(w, not)
		told(unknown, healthpb.HealthCheckResponse_SERVICE_UNKNOWN)
		time.Sleep(3 * watchInterval)
		told(w, not)
		ready.Store(true)
		time.Sleep(watchInterval)
		told(w, not, serving)
		ready.Store(false)
		time.Sleep(watchInterval)
		told(w, not, serving, not)
		told(unknown, healthpb.HealthCheckResponse_SERVICE_UNKNOWN)
		if _, lost := watch("", errLost); !errors.Is(<-lost, errLost) {
			t.Error("a client that cannot be reached is watched for")
		}
		leave()
		if err := errors.Join(<-ended, <-unknownEnded); err != nil {
			t.Errorf("they left: %v", err)
		}
	})
}

// As many fallbacks are named as one likes, or none.
func TestConfig_Validate(t *testing.T) {
	for fallbacks, valid := range map[int]bool{-1: false, 0: true, 1: true} {
		if err := (Config{Fallbacks: fallbacks}).Validate(); (err == nil) != valid {
			t.Errorf("%d: %v", fallbacks, err)
		}
	}
}

// A port that fails ends the server with its error; one that is shut down before it serves does not.
func TestServer_ServeEnds(t *testing.T) {
	f := newPicker(t, setup{})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = ln.Close()
	s := New(Config{}, f.gateway, f.gateway.Ready, nil, slog.New(slog.DiscardHandler))
	if err := s.Serve(ln); !errors.Is(err, net.ErrClosed) || !strings.Contains(err.Error(), "serve the picker") {
		t.Errorf("a port that fails: %v", err)
	}
	s.Shutdown(t.Context())
	if err := s.Serve(ln); err != nil {
		t.Errorf("after its shutdown: %v", err)
	}
}

// Envoy keeps a request to the addresses that it names, written in either way.
func TestSubsetOf(t *testing.T) {
	if _, limited := subsetOf(&extproc.ProcessingRequest{MetadataContext: &corev3.Metadata{}}); limited {
		t.Error("nothing is said, and it is limited")
	}
	other := &structpb.Struct{Fields: map[string]*structpb.Value{"another-key": structpb.NewStringValue("10.0.0.1:80")}}
	if _, limited := subsetOf(&extproc.ProcessingRequest{MetadataContext: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{subsetSpace: other}}}); limited {
		t.Error("another key of the space limits it")
	}
	if got := splitAddresses(" a:1,, b:2 ,"); len(got) != 2 || got[0] != "a:1" || got[1] != "b:2" {
		t.Errorf("%q", got)
	}
}

// The proxy says which server gave an answer, where it knows.
func TestServedBy(t *testing.T) {
	for want, metadata := range map[string]*corev3.Metadata{
		"10.0.0.2:3000": {FilterMetadata: map[string]*structpb.Struct{destinationSpace: {Fields: map[string]*structpb.Value{served: structpb.NewStringValue("10.0.0.2:3000")}}}},
		"":              {FilterMetadata: map[string]*structpb.Struct{destinationSpace: {Fields: map[string]*structpb.Value{"another-key": structpb.NewStringValue("10.0.0.3:3000")}}}},
	} {
		if got := servedBy(&extproc.ProcessingRequest{MetadataContext: metadata}); got != want {
			t.Errorf("it was %q, want %q", got, want)
		}
	}
	if got := servedBy(&extproc.ProcessingRequest{}); got != "" {
		t.Errorf("it was %q where nothing is said", got)
	}
}
