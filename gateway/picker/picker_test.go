package picker

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/tidwall/gjson"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tandem-gateway/tandem/gateway/access"
)

const chatPath = "/v1/chat/completions"

// chatOf is a chat with a prompt of so many bytes, long enough for a pair from some thousands on.
func chatOf(bytes int, more string) []byte {
	return []byte(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("word ", bytes/5+1) + `"}],"max_tokens":8` + more + `}`)
}

// eventOf is a content event of a chat.
func eventOf(text string) string {
	return `data: {"choices":[{"index":0,"delta":{"content":"` + text + `"},"finish_reason":null}]}` + "\n\n"
}

// A request goes to the decode server that was chosen for it, whose sidecar is told which prefill
// server to call, and its answer comes back to the byte; what it held is given back.
func TestPicker_APairServesARequest(t *testing.T) {
	for _, stream := range []bool{false, true} {
		f := newPicker(t, setup{prefill: 2, decode: 2, config: Config{Fallbacks: 2}})
		p := f.open()
		p.request(chatPath, chatOf(8_000, `,"stream":`+strconv.FormatBool(stream)))
		to := p.routing()
		if to.refused != nil {
			t.Fatalf("refused: %s", to.refused.GetBody())
		}
		if len(to.addresses) != 2 || to.header.Get("X-Prefiller-Host-Port") == "" || slices.Contains(to.addresses, to.header.Get("X-Prefiller-Host-Port")) {
			t.Errorf("it goes to %v, prefill is %q", to.addresses, to.header.Get("X-Prefiller-Host-Port"))
		}
		resp := p.forward(to, chatPath)
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("status %d", resp.StatusCode)
		}
		got := string(p.answer(resp, 100))
		if !stream && gjson.Get(got, "choices.0.message.content").String() == "" {
			t.Errorf("the client gets %q", got)
		}
		if stream && (!strings.HasSuffix(got, "data: [DONE]\n\n") || strings.Contains(got, `"usage":{`)) {
			t.Errorf("the client gets %q", got)
		}
		f.nothingHeld()
		prefills := 0
		for _, e := range f.prefill {
			prefills += e.State().HandoffsPulled
		}
		if prefills != 1 {
			t.Errorf("%d prompts were prefilled", prefills)
		}
		f.eventually("it is counted", func() bool { return f.requests("ok") == 1 })
	}
}

// A body of any length reaches the server as the client wrote it, less what no client may send,
// and with the length that it has then.
func TestPicker_ABodyPassesInPieces(t *testing.T) {
	f := newPicker(t, setup{decode: 1})
	for _, size := range []int{0, 61_900, 62_100, 120_000, 5 << 20} {
		body := chatOf(size, "")
		p := f.open()
		p.request(chatPath, bytes.Replace(body, []byte(`,"max_tokens"`), []byte(`,"kv_transfer_params":{"remote_host":"evil"},"max_tokens"`), 1))
		to := p.routing()
		if to.refused != nil {
			t.Fatalf("%d bytes: refused: %s", size, to.refused.GetBody())
		}
		if !bytes.Equal(to.body, body) || to.header.Get("Content-Length") != strconv.Itoa(len(body)) {
			t.Errorf("%d bytes arrive as %d, announced as %s", len(body), len(to.body), to.header.Get("Content-Length"))
		}
		p.cancel()
	}
	f.nothingHeld()
}

// What a client sends to steer a request is removed, and never believed.
func TestPicker_AClientCannotSteer(t *testing.T) {
	f := newPicker(t, setup{decode: 1})
	p := f.open()
	client := []string{
		"x-prefiller-host-port", "10.1.1.1:80", "x-data-parallel-host-port", "10.1.1.1:80", "x-data-parallel-rank", "3", "x-encoder-hosts-ports", "10.1.1.1:80",
		"x-kv-cache-source-host-port", "10.1.1.1:80", destination, "10.1.1.1:80", subsetHint, "10.1.1.1:80", served, "10.1.1.1:80",
	}
	p.request(chatPath, chatOf(10, ""), client...)
	to := p.routing()
	if to.refused != nil {
		t.Fatalf("the client's subset is believed: %s", to.refused.GetBody())
	}
	for i := 0; i < len(client); i += 2 {
		if !slices.Contains(to.removed, client[i]) || to.header.Get(client[i]) == client[i+1] {
			t.Errorf("the client's %s reaches the server", client[i])
		}
	}
	if want := f.fleet.Servers()[0].Address(); !slices.Equal(to.addresses, []string{want}) {
		t.Errorf("it goes to %v, want %s", to.addresses, want)
	}
}

// A request stays among the servers that Envoy names, in either form, with a body or without; of
// none it is refused with 503.
func TestPicker_ObeysTheSubset(t *testing.T) {
	f := newPicker(t, setup{decode: 3, config: Config{Fallbacks: 2}})
	want := f.fleet.Servers()[2].Address()
	list := func(addresses ...any) *structpb.Value {
		l, err := structpb.NewList(addresses)
		if err != nil {
			t.Fatal(err)
		}
		return structpb.NewListValue(l)
	}
	for name, c := range map[string]struct {
		hint *structpb.Value
		want string // "": refused
	}{
		"a list": {list(want), want}, "a text": {structpb.NewStringValue("10.1.1.1:80, " + want), want}, "an empty list": {list(), ""}, "others": {list("10.1.1.1:80"), ""},
		"a list of joined addresses": {list("10.1.1.1:80, "+want, "10.1.1.2:80"), want}, "a text with empty places": {structpb.NewStringValue("  " + want + " ,  ,  10.1.1.1:80 "), want},
		"a text of others": {structpb.NewStringValue("192.168.1.1:8080"), ""}, "an empty text": {structpb.NewStringValue(""), ""},
	} {
		for _, body := range []bool{true, false} {
			p := f.open()
			// The last steers the extension's own picker where it is tested: here a client could send it.
			pairs := []string{":method", "GET", ":path", "/v1/models", "test-epp-endpoint-selection", f.fleet.Servers()[0].Address()}
			if body {
				pairs[1], pairs[3] = "POST", chatPath
			}
			p.send(&extproc.ProcessingRequest{
				MetadataContext: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{subsetSpace: {Fields: map[string]*structpb.Value{subsetHint: c.hint}}}},
				Request: &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{
					Headers: headerList(pairs...), EndOfStream: !body,
				}},
			})
			if body {
				p.body(chatOf(10, ""))
			}
			m := p.receive()
			got := ""
			for _, h := range m.GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
				if h.GetHeader().GetKey() == destination {
					got = string(h.GetHeader().GetRawValue())
				}
			}
			if got != c.want || c.want == "" && m.GetImmediateResponse().GetStatus().GetCode() != 503 {
				t.Errorf("%s, body %v: it goes to %q: %v", name, body, got, m.GetImmediateResponse())
			}
			p.cancel()
		}
	}
	f.nothingHeld()
}

// Where clients have keys of this gateway's, engines get their own in its place.
func TestPicker_TheClientsKeyStaysHere(t *testing.T) {
	keys, err := access.ReadKeys([]byte("secret: 0123456789abcdef0123456789abcdef\nkeys:\n  - sha256: "+access.Hash("sk-ada")+"\n    tenant: ada\n"), access.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	control := access.New(access.DefaultConfig(), nil)
	control.Apply(keys)
	f := newPicker(t, setup{decode: 1, access: control, config: Config{EngineKey: func() string { return "engines" }}})
	p := f.open()
	p.request(chatPath, chatOf(10, ""), "authorization", "Bearer sk-ada")
	to := p.routing()
	if to.refused != nil {
		t.Fatalf("refused: %s", to.refused.GetBody())
	}
	if !slices.Contains(to.removed, "authorization") || !slices.Contains(to.removed, "x-api-key") || to.header.Get("Authorization") != "Bearer engines" {
		t.Errorf("removed %v, set %q", to.removed, to.header.Get("Authorization"))
	}
	if gjson.GetBytes(to.body, "cache_salt").String() == "" {
		t.Error("the tenant's KV is not kept apart")
	}
	p = f.open()
	p.send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{
		Headers: headerList(":method", "GET", ":path", "/v1/models", "authorization", "Bearer sk-ada"), EndOfStream: true,
	}}})
	mutation := p.receive().GetRequestHeaders().GetResponse().GetHeaderMutation()
	set := ""
	for _, h := range mutation.GetSetHeaders() {
		if h.GetHeader().GetKey() == "authorization" {
			set = string(h.GetHeader().GetRawValue())
		}
	}
	if !slices.Contains(mutation.GetRemoveHeaders(), "authorization") || !slices.Contains(mutation.GetRemoveHeaders(), "x-api-key") || set != "Bearer engines" {
		t.Errorf("of a request without a body %v are removed, and %q is set", mutation.GetRemoveHeaders(), set)
	}
}

// A request is known by its id afterwards, with what was chosen and how it ended.
func TestPicker_ARequestIsExplained(t *testing.T) {
	f := newPicker(t, setup{decode: 1})
	p := f.open()
	p.request(chatPath, chatOf(10, ""), "x-request-id", "mine")
	p.answer(p.forward(p.routing(), chatPath), 1000)
	f.nothingHeld()
	decision, found := f.pd.Decisions.Find("mine")
	if !found || decision.Outcome != "picked" || len(decision.Choices) != 1 || decision.Choices[0].Chosen.Decode == "" || !decision.Choices[0].Measured.Usage.Output.Known {
		t.Errorf("the decision is %+v", decision)
	}
}

// Trailers end a body that has not ended, of a request and of an answer.
func TestPicker_TrailersEndABody(t *testing.T) {
	f := newPicker(t, setup{decode: 1})
	p := f.open()
	p.begin(chatPath)
	p.bodyPiece(chatOf(10, `,"stream":true`), false)
	p.send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestTrailers{RequestTrailers: &extproc.HttpTrailers{}}})
	if p.receive().GetRequestHeaders() == nil || p.receive().GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetEndOfStream() || p.receive().GetRequestTrailers() == nil {
		t.Errorf("it is answered by %v", p.messages)
	}
	p.head("200", "text/event-stream")
	p.piece([]byte(eventOf("a")+"data: [DONE]\n\n"), false)
	p.receive()
	p.send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extproc.HttpTrailers{}}})
	if p.receive().GetResponseTrailers() == nil {
		t.Error("the answer's trailers are not answered")
	}
	f.nothingHeld()
	f.eventually("it is counted", func() bool { return f.requests("ok") == 1 })
}

// Health checks say that the process lives, and that the picker is ready only while requests are
// of use to it.
func TestPicker_HealthIsTheGateways(t *testing.T) {
	f := newPicker(t, setup{decode: 1})
	client := healthpb.NewHealthClient(f.conn)
	check := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for service, want := range map[string]healthpb.HealthCheckResponse_ServingStatus{
			"liveness": healthpb.HealthCheckResponse_SERVING, "readiness": want, "": want, "envoy.service.ext_proc.v3.ExternalProcessor": want,
		} {
			got, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
			if err != nil || got.GetStatus() != want {
				t.Errorf("%q is %v, %v, want %v", service, got.GetStatus(), err, want)
			}
		}
		if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "other"}); err == nil {
			t.Error("a service that is not there has a health")
		}
	}
	check(healthpb.HealthCheckResponse_SERVING)
	f.picker.Drain()
	check(healthpb.HealthCheckResponse_NOT_SERVING)
}

// Of an answer whose body is not shown its head is all that counts: it was served when the stream
// ends, and the client gets usage as it asked for it.
func TestPicker_AnswersThatAreNotShown(t *testing.T) {
	f := newPicker(t, setup{decode: 1})
	p := f.open()
	p.send(&extproc.ProcessingRequest{
		ProtocolConfig: &extproc.ProtocolConfiguration{RequestBodyMode: fullDuplex},
		Request:        &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{Headers: headerList(":method", "POST", ":path", chatPath)}},
	})
	p.body(chatOf(10, `,"stream":true`))
	if to := p.routing(); gjson.GetBytes(to.body, "stream_options").Exists() {
		t.Errorf("usage is asked for, which could not be hidden: %s", to.body)
	}
	p.head("200", "text/event-stream")
	if err := p.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	f.nothingHeld()
	f.eventually("it is counted", func() bool { return f.requests("ok") == 1 })
}

// A filter that shows no body, or pieces that it waits to have answered one by one, is refused.
func TestPicker_AFilterInAnotherModeIsRefused(t *testing.T) {
	f := newPicker(t, setup{decode: 1})
	for _, mode := range []filterv3.ProcessingMode_BodySendMode{filterv3.ProcessingMode_NONE, filterv3.ProcessingMode_STREAMED, filterv3.ProcessingMode_BUFFERED_PARTIAL} {
		p := f.open()
		p.beginIn(mode, fullDuplex)
		if _, err := p.stream.Recv(); err == nil || !strings.Contains(err.Error(), "FULL_DUPLEX_STREAMED") {
			t.Errorf("%v: it gets %v", mode, err)
		}
	}
}

// beginIn sends the head of a POST of a filter in some modes.
func (p *proxied) beginIn(requests, answers filterv3.ProcessingMode_BodySendMode, more ...string) {
	p.f.t.Helper()
	p.send(&extproc.ProcessingRequest{
		ProtocolConfig: &extproc.ProtocolConfiguration{RequestBodyMode: requests, ResponseBodyMode: answers},
		Request: &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{
			Headers: headerList(append([]string{":method", "POST", ":path", chatPath}, more...)...),
		}},
	})
}

// Where Envoy buffers bodies its head is answered at once, with nothing, and the body with the
// servers. It is sent back only where it is to be another.
func TestPicker_ABufferedBodyIsSentBackOnlyWhereItChanges(t *testing.T) {
	f := newPicker(t, setup{prefill: 1, decode: 1})
	var coded bytes.Buffer
	zip := gzip.NewWriter(&coded)
	_, _ = zip.Write(chatOf(8<<10, ""))
	_ = zip.Close()
	for name, x := range map[string]struct {
		body    []byte
		answers filterv3.ProcessingMode_BodySendMode
		headers []string
		want    string // in the new body, "" where there is none
	}{
		"as it came":               {body: chatOf(8<<10, ""), answers: fullDuplex},
		"of many frames":           {body: chatOf(220<<10, ""), answers: fullDuplex},
		"usage can be hidden":      {body: chatOf(8<<10, `,"stream":true`), answers: fullDuplex, want: "include_usage"},
		"usage can not be hidden":  {body: chatOf(8<<10, `,"stream":true`), answers: filterv3.ProcessingMode_STREAMED},
		"engines read no encoding": {body: coded.Bytes(), answers: fullDuplex, headers: []string{"content-encoding", "gzip"}, want: `"messages"`},
	} {
		p := f.open()
		p.beginIn(buffered, x.answers, x.headers...)
		if m := p.receive(); m.GetRequestHeaders() == nil || m.GetRequestHeaders().GetResponse() != nil || m.GetDynamicMetadata() != nil {
			t.Fatalf("%s: the head is answered by %v", name, m)
		}
		p.bodyPiece(x.body, true)
		m := p.receive()
		common := m.GetRequestBody().GetResponse()
		if to := m.GetDynamicMetadata().GetFields()[destinationSpace].GetStructValue().GetFields()[destination].GetStringValue(); to != strings.TrimPrefix(f.decode[0].URL(), "http://") ||
			headerSet(common, destination) != to || !common.GetClearRouteCache() || headerSet(common, "x-prefiller-host-port") == "" {
			t.Errorf("%s: it goes to %q: %v", name, to, m)
		}
		announced := "" // of a body that stays the client's header does
		if changed := common.GetBodyMutation().GetBody(); changed != nil {
			announced = strconv.Itoa(len(changed))
		}
		if !slices.Contains(common.GetHeaderMutation().GetRemoveHeaders(), "content-encoding") || headerSet(common, "content-length") != announced {
			t.Errorf("%s: headers %v", name, common.GetHeaderMutation())
		}
		if body := string(common.GetBodyMutation().GetBody()); (common.GetBodyMutation() != nil) != (x.want != "") || !strings.Contains(body, x.want) {
			t.Errorf("%s: the body is %.100q", name, body)
		}
		p.cancel()
		f.nothingHeld()
	}
}

// A buffered body that is followed by trailers is answered before them: they are passed on.
func TestPicker_ABufferedBodyWithTrailers(t *testing.T) {
	f := newPicker(t, setup{decode: 1})
	p := f.open()
	p.beginIn(buffered, fullDuplex)
	p.receive()
	p.bodyPiece(chatOf(10, ""), false)
	if m := p.receive(); m.GetRequestBody() == nil {
		t.Fatalf("the body is answered by %v", m)
	}
	p.send(endOfRequest)
	if m := p.receive(); m.GetRequestTrailers() == nil {
		t.Errorf("the trailers are answered by %v", m)
	}
	p.head("200", "application/json")
}

// headerSet is what a header is set to, "" where it is not.
func headerSet(c *extproc.CommonResponse, name string) string {
	for _, h := range c.GetHeaderMutation().GetSetHeaders() {
		if h.GetHeader().GetKey() == name {
			return string(h.GetHeader().GetRawValue())
		}
	}
	return ""
}
