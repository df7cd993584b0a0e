package envoy

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// Through Envoy, the picker and the sidecar a pair answers as one engine alone, streamed or not,
// on each API, and the KV that decode pulls is that of its own hand-off.
func TestPairs_AnswerAsOneEngineAlone(t *testing.T) {
	f := startPairs(t)
	p := startPicker(t, f)
	gateway := startProxy(t, standalone(t, p)).url
	requests := 0
	for _, extra := range []string{"", streamed, streamed + `,"stream_options":{"include_usage":true}`} {
		for path, body := range map[string]string{
			chatPath:        chat(requests, words(900), extra),
			completionsPath: fmt.Sprintf(`{"model":%q,"max_tokens":12,"prompt":%q%s}`, model, words(900)+fmt.Sprint(requests), extra),
		} {
			send(t.Context(), gateway+path, body).check(t, path+extra, reference(t, f, path, body))
			requests++
		}
	}
	for path, body := range map[string]string{
		"/v1/messages":  fmt.Sprintf(`{"model":%q,"max_tokens":12,"messages":[{"role":"user","content":%q}]}`, model, words(900)),
		"/v1/responses": fmt.Sprintf(`{"model":%q,"max_output_tokens":12,"input":%q}`, model, words(1200)),
	} {
		if a := send(t.Context(), gateway+path, body); a.status != http.StatusOK || a.err != nil {
			t.Errorf("%s: %d %v %.300s", path, a.status, a.err, a.body)
		}
		requests++
	}
	checkPairs(t, f, p, requests)
}

// A request without a body is sent on when its headers are there.
func TestRequest_WithoutABodyEndsInItsHeaders(t *testing.T) {
	f := startPairs(t)
	p := startPicker(t, f)
	gateway := startProxy(t, standalone(t, p)).url
	var models struct{ Data []struct{ ID string } }
	if err := process.JSON(gateway+"/v1/models", &models); err != nil || len(models.Data) != 1 || models.Data[0].ID != model {
		t.Errorf("%v, %+v", err, models)
	}
	checkIdle(t, p)
}

// A route may put APIs behind a prefix: Envoy rewrites the path only once the picker has chosen.
func TestRoute_MayRewriteThePath(t *testing.T) {
	f := startPairs(t)
	p := startPicker(t, f)
	gateway := startProxy(t, standalone(t, p)).url
	body := chat(0, words(900), "")
	send(t.Context(), gateway+"/behind"+chatPath, body).check(t, "a path behind a prefix", reference(t, f, chatPath, body))
	if a := send(t.Context(), gateway+"/behind/v1/nothing", body); a.status != http.StatusNotFound {
		t.Errorf("a path of no API: %d %.300s", a.status, a.body)
	}
	checkPairs(t, f, p, 1)
}

// Bodies that Envoy sends in many pieces arrive whole: 120 KB of text, and 5 MB of an image.
func TestBodies_OfManyPiecesArriveWhole(t *testing.T) {
	f := startPairs(t, "--max-model-len", "131072", "--time-scale", "0.05")
	p := startPicker(t, f)
	gateway := startProxy(t, standalone(t, p)).url
	image := fmt.Sprintf(`{"model":%q,"max_tokens":12,"messages":[{"role":"user","content":[{"type":"text","text":%q},`+
		`{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}}]}]`, model, words(2000), strings.Repeat("aGFyYm91", 5<<20/8))
	for name, body := range map[string]func(extra string) string{
		"120 KB": func(extra string) string { return chat(len(extra), words(120<<10), extra) },
		"5 MB":   func(extra string) string { return image + extra + "}" },
	} {
		for _, extra := range []string{"", streamed} {
			send(t.Context(), gateway+chatPath, body(extra)).check(t, name+extra, reference(t, f, chatPath, body(extra)))
		}
	}
	checkIdle(t, p)
	if decode := workOf(t, f["decode"]); decode.Rejected+decode.Recomputed+decode.LoadFailures != 0 {
		t.Errorf("decode servers report %+v", decode)
	}
}

// A body that Envoy keeps (BUFFERED) and the picker changes is served as well, however it came: announced by its
// length or not, compressed, and with what no client may send.
func TestBodies_KeptByEnvoyMayChange(t *testing.T) {
	f := fleet{}
	f.start(t, "both", 1)
	p := startPicker(t, f)
	envoy := standalone(t, p)
	envoy.Requests, envoy.Answers = "BUFFERED", "STREAMED"
	gateway := startProxy(t, envoy).url
	body := chat(0, words(900), "")
	var coded bytes.Buffer
	zip := gzip.NewWriter(&coded)
	if _, err := zip.Write([]byte(body)); err != nil || zip.Close() != nil {
		t.Fatal(err)
	}
	want := reference(t, f, chatPath, body)
	for name, c := range map[string]struct{ body, encoding string }{
		"as it came":               {body: body},
		"compressed":               {coded.String(), "gzip"},
		"with a transfer's fields": {body: chat(0, words(900), `,"kv_transfer_params":{"remote_host":"127.0.0.1"}`)},
	} {
		for _, length := range []bool{true, false} {
			var sent io.Reader = strings.NewReader(c.body)
			if !length {
				sent = struct{ io.Reader }{sent}
			}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, gateway+chatPath, sent)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			if c.encoding != "" {
				req.Header.Set("Content-Encoding", c.encoding)
			}
			do(req).check(t, fmt.Sprintf("%s, its length announced: %v", name, length), want)
		}
	}
	checkIdle(t, p)
}

// Two hundred requests at once are all answered, each with its own answer.
func TestConcurrent_TwoHundredAtOnce(t *testing.T) {
	f := startPairs(t, "--time-scale", "0.2")
	p := startPicker(t, f)
	gateway := startProxy(t, standalone(t, p)).url
	const atOnce, kinds = 200, 20
	want := make([]string, kinds)
	for i := range want {
		want[i] = reference(t, f, chatPath, chat(i, words(1500), ""))
	}
	var under sync.WaitGroup
	for i := range atOnce {
		under.Go(func() {
			extra := []string{"", streamed}[i/kinds%2]
			send(t.Context(), gateway+chatPath, chat(i%kinds, words(1500), extra)).check(t, fmt.Sprint(i, extra), want[i%kinds])
		})
	}
	under.Wait()
	checkPairs(t, f, p, atOnce)
}

// The places of a request whose client has left are free within 50 ms, as the admin port shows
// it, and the engine stops computing.
func TestClientGone_ItsPlacesAreFreeAtOnce(t *testing.T) {
	f := startPairs(t)
	p := startPicker(t, f)
	gateway := startProxy(t, standalone(t, p)).url
	took := make([]time.Duration, 5)
	for i := range took {
		ctx, leave := context.WithCancel(t.Context())
		resp := openStream(t, ctx, gateway, fmt.Sprintf(`{"model":%q,"max_tokens":4000,"ignore_eos":true,"prompt":%q,"stream":true}`, model, words(900)+fmt.Sprint(i)))
		if n := p.held(t); n != 1 {
			t.Errorf("%d places are held for a stream", n) // prefill's is free again
		}
		left := time.Now()
		leave()
		for p.held(t) != 0 {
			if time.Since(left) > process.ReadyWithin {
				t.Fatal("its place is held for ever")
			}
		}
		took[i] = time.Since(left)
		resp.Body.Close()
	}
	slices.Sort(took)
	t.Logf("places were free after %v", took)
	if half := took[len(took)/2]; half > 50*time.Millisecond {
		t.Errorf("half of the places were held for %v and longer", half)
	}
	process.WaitFor(t, nil, "the engines to stop", process.ReadyWithin, func() error {
		for _, s := range f["decode"] {
			var state struct{ Running int }
			if err := process.JSON(s.url+"/sim/state", &state); err != nil || state.Running != 0 {
				return fmt.Errorf("%d are running, %v", state.Running, err)
			}
		}
		return nil
	})
}

// openStream sends a request for a stream and returns when its first event is there.
func openStream(t *testing.T, ctx context.Context, gateway, body string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, gateway+completionsPath, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil || !strings.HasPrefix(line, "data: {") {
		t.Fatalf("%s: %q, %v", resp.Status, line, err)
	}
	return resp
}

// What is wrong with a request is said in OpenAI's shape of an error, and no engine sees it.
func TestRefused_InOpenAIsShape(t *testing.T) {
	f := startPairs(t)
	p := startPicker(t, f)
	gateway := startProxy(t, standalone(t, p)).url
	for name, c := range map[string]struct {
		body   string
		status int
	}{
		"malformed JSON":   {`{"model":"test-model","messages":[`, http.StatusBadRequest},
		"an unknown model": {`{"model":"another","messages":[{"role":"user","content":"hello"}]}`, http.StatusNotFound},
	} {
		a := send(t.Context(), gateway+chatPath, c.body)
		var said struct {
			Error struct{ Message, Type string }
		}
		if err := json.Unmarshal([]byte(a.body), &said); err != nil || a.status != c.status || said.Error.Message == "" || said.Error.Type == "" {
			t.Errorf("%s: %d, %v: %.300s", name, a.status, a.err, a.body)
		}
		if kind := a.header.Get("Content-Type"); kind != "application/json" {
			t.Errorf("%s: content type %q", name, kind)
		}
	}
	if decode := workOf(t, f["decode"]); decode != (work{}) {
		t.Errorf("decode servers report %+v", decode)
	}
	checkIdle(t, p)
}

// Where no server is ready the answer is 503.
func TestNoServer_Is503(t *testing.T) {
	f := startPairs(t)
	p := startPicker(t, f)
	gateway := startProxy(t, standalone(t, p)).url
	for _, s := range f.all("prefill", "decode") {
		s.p.Kill(t)
	}
	process.WaitFor(t, p.p, "the picker to see that no server is up", process.ReadyWithin, process.SeesUp("http://"+p.admin, 0))
	if a := send(t.Context(), gateway+chatPath, chat(0, words(300), "")); a.status != http.StatusServiceUnavailable || !strings.Contains(a.body, `"error"`) {
		t.Errorf("%d, %v: %.300s", a.status, a.err, a.body)
	}
}

// More than the picker admits is refused at once with 429, and what it admitted is answered.
func TestShed_Is429(t *testing.T) {
	f := startPairs(t)
	p := startPicker(t, f, "--max-in-flight", "1", "--max-waiting", "1", "--max-wait", "1s")
	gateway := startProxy(t, standalone(t, p)).url
	statuses := map[int]int{}
	var mu sync.Mutex
	var under sync.WaitGroup
	for i := range 8 {
		under.Go(func() {
			a := send(t.Context(), gateway+chatPath, chat(i, words(900), `,"ignore_eos":true`))
			mu.Lock()
			defer mu.Unlock()
			statuses[a.status]++
		})
	}
	under.Wait()
	if statuses[http.StatusOK] == 0 || statuses[http.StatusTooManyRequests] == 0 || statuses[http.StatusOK]+statuses[http.StatusTooManyRequests] != 8 {
		t.Errorf("statuses %v", statuses)
	}
	checkIdle(t, p)
}

// What a client says of servers in headers of the protocol is not believed.
func TestClient_CannotNameServers(t *testing.T) {
	f := startPairs(t)
	p := startPicker(t, f)
	gateway := startProxy(t, standalone(t, p)).url
	body := chat(0, words(900), "")
	want := reference(t, f, chatPath, body)
	for i, header := range []string{"X-Gateway-Destination-Endpoint", "X-Prefiller-Host-Port", "X-Data-Parallel-Host-Port", "X-Kv-Cache-Source-Host-Port"} {
		send(t.Context(), gateway+chatPath, body, header+": 127.0.0.1:1").check(t, header, want)
		if workOf(t, f["prefill"]).Prefills > i+1 {
			t.Errorf("%s: more than one prefill", header)
		}
	}
	checkIdle(t, p)
}

// Servers of both roles, and ranks with ports of their own, are picked as they are.
func TestAggregated_ServersAndRanks(t *testing.T) {
	f := fleet{}
	f.start(t, "both", 2)
	ranks := startRanks(t, 2)
	f["both"] = append(f["both"], ranks...)
	p := startPicker(t, f)
	gateway := startProxy(t, standalone(t, p)).url
	body := chat(0, words(900), "")
	want := reference(t, f, chatPath, body)
	for i := range 24 {
		extra := []string{"", streamed}[i%2]
		send(t.Context(), gateway+chatPath, chat(0, words(900), extra)).check(t, extra, want)
	}
	var under sync.WaitGroup
	for i := range 32 {
		under.Go(func() {
			if a := send(t.Context(), gateway+chatPath, chat(i, words(900), "")); a.status != http.StatusOK || a.err != nil {
				t.Errorf("%d, %v", a.status, a.err)
			}
		})
	}
	under.Wait()
	if done := workOf(t, f["both"][:3]); done.Aggregated != 24+32+1 {
		t.Errorf("servers report %+v", done)
	}
	checkIdle(t, p)
}

// startRanks starts an engine of so many ranks, each with a port of its own. All its addresses
// show the work of the whole engine.
func startRanks(t *testing.T, n int) (ranks []*server) {
	t.Helper()
	listen := process.FreeAddress(t)
	p := process.Start(t, nil, "ranks", "bin/tandem-lab", "engine", "--listen", listen, "--model", model, "--connector", "llmd-sidecar",
		"--min-output-tokens", "8", "--mean-output-tokens", "20", "--data-parallel-size", fmt.Sprint(n), "--rank-ports")
	process.WaitFor(t, p, "the ranks", process.ReadyWithin, process.Answers("http://"+listen+"/health"))
	at := addressOf(t, listen)
	var first int
	if _, err := fmt.Sscan(at.Port, &first); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		ranks = append(ranks, &server{url: fmt.Sprintf("http://%s:%d", at.Host, first+i), p: p})
	}
	return ranks
}

// The picker keeps to the servers that the gateway names for a request.
func TestSubset_IsObeyed(t *testing.T) {
	f := fleet{}
	f.start(t, "both", 3)
	p := startPicker(t, f)
	gateway := startProxy(t, ofPool(t, p, f["both"])).url
	for i, s := range f["both"] {
		before := workOf(t, f["both"][i:i+1]).Aggregated
		for n := range 5 {
			if a := send(t.Context(), gateway+chatPath, chat(n, words(900), ""), "X-Test-Subset: "+strings.TrimPrefix(s.url, "http://")); a.status != http.StatusOK {
				t.Errorf("%d, %v: %.300s", a.status, a.err, a.body)
			}
		}
		if done := workOf(t, f["both"][i:i+1]).Aggregated - before; done != 5 {
			t.Errorf("server %d got %d of 5 requests", i, done)
		}
	}
	if a := send(t.Context(), gateway+chatPath, chat(0, words(900), ""), "X-Test-Subset: 192.0.2.1:8000"); a.status != http.StatusServiceUnavailable {
		t.Errorf("no server of the subset is known: %d, %v: %.300s", a.status, a.err, a.body)
	}
	checkIdle(t, p)
}
