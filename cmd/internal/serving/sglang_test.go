package serving

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pools/breaker"
)

// sglangEngine is one whose legs meet in rooms. Its timeout is SGLang's, minutes: what
// a test waits for must come from the gateway.
func sglangEngine(cfg *engine.Config) { cfg.Connector = engine.ConnectorSGLang }

// sglangBefore22 drops where the legs of a message or a response meet, as SGLang does before 0.5.22.
func sglangBefore22(cfg *engine.Config) { sglangEngine(cfg); cfg.Version = "0.5.21" }

func TestSGLang_AnswersEqualOneEngine(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 2, decode: 2, engine: sglangEngine})
	short := `{"model":"test-model","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}`
	bodies := []struct{ path, body string }{
		{"/v1/chat/completions", chatBody("")},
		{"/v1/chat/completions", chatBody(`,"stream":true`)},
		{"/v1/chat/completions", chatBody(`,"stream":true,"logprobs":true,"top_logprobs":2`)},
		{"/v1/chat/completions", short}, // less than a block is handed over too
		{"/v1/completions", `{"model":"test-model","max_tokens":9,"prompt":"the river and the city of stone"}`},
	}
	for _, b := range bodies {
		got, want := c.post(b.path, b.body), reference(t, b.path, b.body)
		if got.status != 200 || got.err != nil || got.text() != want.text() {
			t.Errorf("%s %.60s: %d %v %.300s", b.path, b.body, got.status, got.err, got.body)
		}
		if got.header.Get("X-Tandem-Prefill") == "" {
			t.Errorf("%s %.60s ran alone", b.path, b.body)
		}
	}
	c.roomsAreFresh()
	c.nothingIsLeft(len(bodies))
}

// roomsAreFresh checks that both legs of each attempt named one room, and that no two
// attempts did.
func (c *cluster) roomsAreFresh() {
	c.t.Helper()
	rooms := func(engines []*engine.Engine) map[string]int {
		seen := make(map[string]int)
		for _, e := range engines {
			for _, r := range e.State().Requests {
				room := gjson.Get(r.Body, "bootstrap_room").Raw
				if seen[room]++; room == "" || seen[room] > 1 {
					c.t.Errorf("room %q is named %d times: %.200s", room, seen[room], r.Body)
				}
			}
		}
		return seen
	}
	prefill, decode := rooms(c.prefill), rooms(c.decode)
	for room := range decode {
		if prefill[room] == 0 && len(prefill) == len(decode) {
			c.t.Errorf("room %s has no prefill", room)
		}
	}
}

// nothingIsLeft checks that engines hold nothing, and how many decodes they finished.
func (c *cluster) nothingIsLeft(decodes int) {
	c.t.Helper()
	engines := append(c.prefill, c.decode...)
	eventually(c.t, "no engine has work or holds KV", func() bool {
		return sum(engines, func(s engine.State) int {
			return s.Running + s.Waiting + s.HandoffsOpen + s.ServerLoad + s.KVBlocksUsed
		}) == 0
	})
	if n := sum(c.decode, func(s engine.State) int { return s.DecodesDone }); n != decodes {
		c.t.Errorf("%d decodes, want %d", n, decodes)
	}
	if n := sum(engines, func(s engine.State) int { return s.HandoffsExpired + s.HandoffsRejected + s.AggregatedDone }); n != 0 {
		c.t.Errorf("%d hand-offs expired or rejected, or requests alone", n)
	}
}

func TestSGLang_OneBadServerCostsNoRequest(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"prefill", "decode"} {
		for _, fault := range faultsOfServers {
			for _, stream := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s%d%s/stream=%v", role, fault.Kind, fault.Status, fault.Path, stream), func(t *testing.T) {
					t.Parallel()
					c, other := withFault(t, role, fault, sglangEngine)
					c.answersAsAlone(stream)
					eventually(t, "the other legs are cancelled", func() bool {
						return sum(other, func(s engine.State) int { return s.ServerLoad + s.HandoffsOpen }) == 0
					})
					c.roomsAreFresh()
					c.breakersAreClosed(other)
				})
			}
		}
	}
}

// breakersAreClosed checks the breakers of engines, in the role that the test gave them.
func (c *cluster) breakersAreClosed(engines []*engine.Engine) {
	c.t.Helper()
	for _, e := range engines {
		for _, s := range c.node.fleet.Servers() {
			if got := s.Breaker(s.Role, time.Now()); s.URL == e.URL() && got != breaker.Closed {
				c.t.Errorf("the breaker of %s %s is %s", s.Role, s.ID(), got)
			}
		}
	}
}

// A server in decode mode cannot prefill.
func TestSGLang_NothingRunsAloneOnADecodeServer(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: sglangEngine, config: faultTimeouts})
	c.prefill[0].SetFault(engine.Fault{Kind: engine.FaultRefuse})
	if got := c.post("/v1/chat/completions", chatBody("")); got.status != 503 && got.status != 502 {
		t.Errorf("%d: %s", got.status, got.body)
	}
	if n := sum(c.decode, func(s engine.State) int { return s.AggregatedDone + s.DecodesDone }); n != 0 {
		t.Errorf("decode answered %d requests", n)
	}
	eventually(t, "decode is let go", func() bool { return c.decode[0].State().ServerLoad == 0 })
}

func TestSGLang_AnAggregatedServerTakesWhatPairsCannot(t *testing.T) {
	whole := startTestEngine(t, engine.RoleBoth, sglangEngine)
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: sglangEngine, config: func(cfg *config) {
		faultTimeouts(cfg)
		cfg.servers[2].add(serverEntry{URL: whole.URL(), Connector: "aggregated"})
	}})
	eventually(t, "it is up", func() bool { return c.metric("tandem_server_up") == 3 })
	c.prefill[0].SetFault(engine.Fault{Kind: engine.FaultRefuse})
	if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 || got.header.Get("X-Tandem-Prefill") != "" {
		t.Errorf("%d: %s", got.status, got.body)
	}
	if s := whole.State(); s.AggregatedDone != 1 {
		t.Errorf("%d requests on the aggregated server", s.AggregatedDone)
	}
}

func TestSGLang_SeveralPromptsMeetInRoomsOfTheirOwn(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: sglangEngine})
	for _, b := range []struct{ path, body string }{
		{"/v1/completions", `{"model":"test-model","max_tokens":9,"prompt":["the river","of stone and of the bridge across it","the city"]}`},
		{"/v1/completions", `{"model":"test-model","max_tokens":9,"prompt":["the river and the city","of stone and of the bridge across it","hi"]}`},
	} {
		got, want := c.post(b.path, b.body), reference(t, b.path, b.body)
		if got.status != 200 || gjson.Get(got.body, "choices.#.text").Raw != gjson.Get(want.body, "choices.#.text").Raw ||
			gjson.Get(got.body, "choices.#.message.content").Raw != gjson.Get(want.body, "choices.#.message.content").Raw {
			t.Errorf("%s: %d %.400s\nwant %.400s", b.path, got.status, got.body, want.body)
		}
		for _, r := range append(requests(c.prefill, b.path), requests(c.decode, b.path)...) {
			rooms, hosts := gjson.Get(r.Body, "bootstrap_room").Array(), gjson.Get(r.Body, "bootstrap_host").Array()
			if len(rooms) != 3 || len(hosts) != 3 || rooms[0].Raw == rooms[1].Raw {
				t.Errorf("rooms %v, hosts %v", rooms, hosts)
			}
		}
	}
	c.nothingIsLeft(6)
}

// Of several answers to a prompt SGLang's pairs bring the KV of one: without another server they are refused before an
// engine gets them.
func TestSGLang_SeveralAnswersToAPromptAreRefusedToPairs(t *testing.T) {
	c := newNative(t)
	for path, body := range map[string]string{
		"/v1/chat/completions": chatBody(`,"n":3`),
		"/v1/completions":      `{"model":"test-model","max_tokens":9,"prompt":["the river","the city"],"n":2}`,
		"/generate":            `{"text":"the river","sampling_params":{"max_new_tokens":4,"n":3}}`,
	} {
		got, field := c.post(path, body), map[bool]string{true: "sampling_params", false: "n"}[path == "/generate"]
		if got.status != 400 || gjson.Get(got.body, "error.param").String() != field || !strings.Contains(got.body, "one answer to a prompt") {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
		if n := len(requests(c.prefill, path)) + len(requests(c.decode, path)); n != 0 {
			t.Errorf("%s reached engines", path)
		}
	}
}

func TestSGLang_SeveralAnswersToAPromptRunOnAServerThatDoesBoth(t *testing.T) {
	whole := startTestEngine(t, engine.RoleBoth, sglangEngine)
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: sglangEngine, config: func(cfg *config) {
		cfg.servers[2].add(serverEntry{URL: whole.URL(), Connector: "aggregated"})
	}})
	eventually(t, "it is up", func() bool { return c.metric("tandem_server_up") == 3 })
	for _, b := range []struct{ path, body string }{
		{"/v1/chat/completions", chatBody(`,"n":3`)},
		{"/v1/completions", `{"model":"test-model","max_tokens":9,"prompt":["the river","the city"],"n":2}`},
	} {
		for range 3 { // a pair would be cheaper for some
			got, want := c.post(b.path, b.body), reference(t, b.path, b.body)
			if got.status != 200 || got.header.Get("X-Tandem-Prefill") != "" ||
				gjson.Get(got.body, "choices.#.text").Raw != gjson.Get(want.body, "choices.#.text").Raw ||
				gjson.Get(got.body, "choices.#.message.content").Raw != gjson.Get(want.body, "choices.#.message.content").Raw {
				t.Errorf("%s: %d %.400s\nwant %.400s", b.path, got.status, got.body, want.body)
			}
		}
	}
}

// Messages and responses say where their legs meet, as chats do: pairs get them as they are.
func TestSGLang_PairsTakeMessagesAndResponses(t *testing.T) {
	t.Parallel()
	alone := startTestEngine(t, engine.RoleBoth, sglangEngine)
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: sglangEngine})
	response := func(extra string) string {
		return `{"model":"test-model","max_output_tokens":9,"input":"the river and the city"` + extra + `}`
	}
	for _, r := range []struct{ path, body string }{
		{messagesPath, agentTurn("")}, {messagesPath, agentTurn(`,"stream":true`)}, {messagesPath, agentTurn(`,"output_config":{"effort":"low"}`)},
		{"/v1/responses", response("")}, {"/v1/responses", response(`,"stream":true`)},
	} {
		before := len(requests(c.prefill, r.path)) + len(requests(c.decode, r.path))
		got, want := c.post(r.path, r.body), askEngine(t, alone, r.path, r.body)
		if got.status != 200 || got.text() != want.text() || got.text() == "" || got.header.Get("X-Tandem-Prefill") == "" {
			t.Errorf("%s: %d %s\nwant %s", r.body, got.status, got.body, want.body)
		}
		if legs := len(requests(c.prefill, r.path)) + len(requests(c.decode, r.path)) - before; legs != 2 {
			t.Errorf("%s: %d legs", r.body, legs)
		}
	}
	c.roomsAreFresh()
	if n := c.metric("tandem_retries_total"); n != 0 {
		t.Errorf("%v legs failed", n)
	}
}

// Older prefill and decode servers drop the room of a message, and refuse what has none: they get the chat that means
// the same.
func TestSGLang_OlderPairsAnswerMessages(t *testing.T) {
	t.Parallel()
	alone := startTestEngine(t, engine.RoleBoth, sglangBefore22)
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: sglangBefore22})
	for _, extra := range []string{"", `,"stream":true`, `,"stop_sequences":[" the"," a"," of"]`, `,"tool_choice":{"type":"any"}`} {
		got := c.post(messagesPath, agentTurn(extra))
		if want := messageOf(t, askEngine(t, alone, messagesPath, agentTurn(extra))); messageOf(t, got) != want || got.header.Get("X-Tandem-Prefill") == "" {
			t.Errorf("%s: %s\nwant %s", extra, got.body, want)
		}
	}
	c.roomsAreFresh()
	inexact := c.post(messagesPath, agentTurn(`,"container":"c"`))
	if message := gjson.Get(inexact.body, "error.message").String(); inexact.status != 400 || !strings.Contains(message, "cannot be sent as a chat because of") || strings.Contains(message, "tenants") {
		t.Errorf("a message that no chat means: %d %s", inexact.status, inexact.body)
	}
	if n := c.metric("tandem_retries_total"); n != 0 {
		t.Errorf("%v legs failed", n)
	}
}

// What chats can say of images, of the answer's schema and of the effort, older pairs get so, and pairs of tenants: the
// answers are those to the message itself.
func TestSGLang_MessagesWithImagesAndSchemasAreChats(t *testing.T) {
	t.Parallel()
	image := `{"type":"image","source":{"type":"base64","media_type":"image/png","data":"aGFyYm91cg=="}}`
	seen := func(body string) string {
		body = strings.Replace(body, `{"type":"text","text":"How is`, image+`,{"type":"text","text":"How is`, 1)
		return strings.Replace(body, `"content":"rain"`, `"content":[{"type":"text","text":"rain"},{"type":"image","source":{"type":"url","url":"http://10.0.0.9/sky.png"}}]`, 1)
	}
	schema := `{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}`
	config := `,"output_config":{"effort":"low","format":{"type":"json_schema","schema":` + schema + `}}`
	short := `{"model":"` + testModel + `","max_tokens":40,"messages":[{"role":"user","content":"the city and the river"}]` + config + `}`
	alone := startTestEngine(t, engine.RoleBoth, sglangEngine)
	for name, c := range map[string]*cluster{
		"older":   newCluster(t, shape{prefill: 1, decode: 1, engine: sglangBefore22}),
		"tenants": newCluster(t, shape{prefill: 1, decode: 1, engine: sglangEngine, config: withKeys(t, "sk-ada tenant=ada")}),
	} {
		for what, body := range map[string]string{"images": seen(agentTurn("")), "images, streamed": seen(agentTurn(`,"stream":true`)), "a schema": short} {
			got := c.post(messagesPath, body, "X-Api-Key", "sk-ada")
			if want := messageOf(t, askEngine(t, alone, messagesPath, body)); messageOf(t, got) != want || got.header.Get("X-Tandem-Prefill") == "" {
				t.Errorf("%s, %s: %s\nwant %s", name, what, got.body, want)
			}
		}
		chats := requests(c.decode, chatPath)
		if len(chats) != 3 || len(requests(c.decode, messagesPath)) != 0 {
			t.Errorf("%s: decode got %d chats", name, len(chats))
			continue
		}
		for _, leg := range chats {
			body := gjson.Parse(leg.Body)
			if asked := body.Get("response_format.json_schema.schema"); asked.Exists() && (asked.Raw != schema || body.Get("chat_template_kwargs.reasoning_effort").String() != "low" || body.Get("reasoning_effort").Exists()) {
				t.Errorf("%s: decode got %s", name, leg.Body)
			}
		}
	}
}

// While servers are replaced one of a pair may be older: the pair gets what both take.
func TestSGLang_APairTakesWhatTheOlderServerTakes(t *testing.T) {
	t.Parallel()
	for name, kinds := range map[string][2]func(*engine.Config){"prefill is older": {sglangBefore22, sglangEngine}, "decode is older": {sglangEngine, sglangBefore22}} {
		prefill, decode := startTestEngine(t, engine.RolePrefill, kinds[0]), startTestEngine(t, engine.RoleDecode, kinds[1])
		c := newCluster(t, shape{config: func(cfg *config) {
			cfg.servers[0].add(serverEntry{URL: prefill.URL(), Layout: "one"})
			cfg.servers[1].add(serverEntry{URL: decode.URL(), Layout: "one"})
		}})
		eventually(t, "both are up", func() bool { return c.metric("tandem_server_up") == 2 })
		if got := c.post(messagesPath, agentTurn("")); got.status != 200 || got.header.Get("X-Tandem-Prefill") == "" || len(requests([]*engine.Engine{decode}, chatPath)) != 1 {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
		if got := c.post("/v1/responses", `{"model":"test-model","max_output_tokens":9,"input":"the river and the city"}`); got.status != 400 {
			t.Errorf("%s, a response: %d %s", name, got.status, got.body)
		}
	}
}

// Agents send the thinking of earlier answers back with each turn, and older pairs get it where chats have it.
func TestSGLang_OlderPairsTakeTheThinkingOfEarlierTurns(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: sglangBefore22})
	thought := strings.Replace(agentTurn(`,"thinking":{"type":"enabled","budget_tokens":1024}`),
		`[{"type":"text","text":"Let me see."}`, `[{"type":"thinking","thinking":"It may rain.","signature":""},{"type":"text","text":"Let me see."}`, 1)
	if got := c.post(messagesPath, thought); got.status != 200 || got.header.Get("X-Tandem-Prefill") == "" {
		t.Fatalf("%d %s", got.status, got.body)
	}
	for role, legs := range map[string][]engine.Request{"prefill": requests(c.prefill, chatPath), "decode": requests(c.decode, chatPath)} {
		if len(legs) != 1 {
			t.Fatalf("%d legs of %s", len(legs), role)
		}
		turn := gjson.Get(legs[0].Body, `messages.#(role=="assistant")`)
		if turn.Get("reasoning_content").String() != "It may rain." || turn.Get("content").String() != "Let me see." || !turn.Get("tool_calls").Exists() ||
			!gjson.Get(legs[0].Body, "chat_template_kwargs.enable_thinking").Bool() {
			t.Errorf("%s got %s", role, legs[0].Body)
		}
	}
}

// They drop the room of a response too, of which no chat is made: it needs a server that does both.
func TestSGLang_ResponsesNeedAServerThatDoesBothBesideOlderPairs(t *testing.T) {
	t.Parallel()
	const path, body = "/v1/responses", `{"model":"test-model","max_output_tokens":9,"input":"the river and the city"}`
	pairs := newCluster(t, shape{prefill: 1, decode: 1, engine: sglangBefore22})
	got := pairs.post(path, body)
	if message := gjson.Get(got.body, "error.message").String(); got.status != 400 || !strings.Contains(message, path) || !strings.Contains(message, chatPath) {
		t.Errorf("%d %s", got.status, got.body)
	}
	if n := len(requests(pairs.prefill, path)) + len(requests(pairs.decode, path)); n != 0 {
		t.Errorf("%d legs were sent in vain", n)
	}
	whole := startTestEngine(t, engine.RoleBoth, sglangBefore22)
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: sglangBefore22, config: func(cfg *config) {
		cfg.servers[2].add(serverEntry{URL: whole.URL(), Connector: "aggregated"})
	}})
	eventually(t, "all are up", func() bool { return c.metric("tandem_server_up") == 3 })
	inexact := agentTurn(`,"container":"c"`) // no chat means the same
	for path, body := range map[string]string{path: body, messagesPath: inexact} {
		for range 4 {
			got, want := c.post(path, body), askEngine(t, whole, path, body)
			if got.status != 200 || got.text() != want.text() || "http://"+got.header.Get("X-Tandem-Decode") != whole.URL() {
				t.Errorf("%s by %s: %d %s", path, got.header.Get("X-Tandem-Decode"), got.status, got.body)
			}
		}
	}
}

// SGLang takes best_of and gives n answers all the same, so there are rooms for n.
func TestSGLang_SamplesThatAreNotAnsweredHaveNoRoom(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: sglangEngine})
	body := `{"model":"test-model","max_tokens":9,"best_of":3,"prompt":["the river and the city","of stone and of the bridge across it"]}`
	got, want := c.post("/v1/completions", body), reference(t, "/v1/completions", body)
	if texts := gjson.Get(got.body, "choices.#.text").Raw; got.status != 200 || texts != gjson.Get(want.body, "choices.#.text").Raw {
		t.Errorf("%d %.400s\nwant %.400s", got.status, got.body, want.body)
	}
	c.nothingIsLeft(2)
}

func TestSGLang_BothLegsNameTheirRanks(t *testing.T) {
	ranks := func(cfg *engine.Config) { sglangEngine(cfg); cfg.DataParallel = 2 }
	p, d := startTestEngine(t, engine.RolePrefill, ranks), startTestEngine(t, engine.RoleDecode, ranks)
	c := newCluster(t, shape{config: func(cfg *config) {
		for rank := range 2 {
			cfg.servers[0].add(serverEntry{URL: p.URL(), Rank: &rank, Connector: "sglang", KVAddress: p.State().KVAddress})
			cfg.servers[1].add(serverEntry{URL: d.URL(), Rank: &rank, Connector: "sglang"})
		}
	}})
	eventually(t, "all ranks are up", func() bool { return c.metric("tandem_server_up") == 4 })
	want := reference(t, "/v1/chat/completions", chatBody("")).text()
	for range 8 {
		got := c.post("/v1/chat/completions", chatBody(""))
		if got.status != 200 || got.text() != want {
			t.Fatalf("%d: %s", got.status, got.body)
		}
		from, to := got.header.Get("X-Tandem-Prefill"), got.header.Get("X-Tandem-Decode")
		last := requests([]*engine.Engine{d}, "/v1/chat/completions")
		body := last[len(last)-1].Body
		if pair := fmt.Sprintf("dp%s dp%s", gjson.Get(body, "disagg_prefill_dp_rank").Raw, gjson.Get(body, "routed_dp_rank").Raw); !strings.HasSuffix(from, pair[:3]) || !strings.HasSuffix(to, pair[4:]) {
			t.Errorf("%s to %s were told %s", from, to, pair)
		}
	}
	if n := c.metric("tandem_retries_total"); n != 0 {
		t.Errorf("%v legs failed first", n)
	}
}

// Prefill computes nothing for a decode that has no room for it.
func TestSGLang_PrefillWaitsForDecodesRoom(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: func(cfg *engine.Config) {
		sglangEngine(cfg)
		cfg.TimeScale, cfg.MaxSeqs = 1, 1
	}})
	first := c.dialRequest(chatBodyOf(4000, `,"ignore_eos":true,"stream":true`))
	eventually(t, "the only seat is taken", func() bool { return c.decode[0].State().Running == 1 })
	second := make(chan answer, 1)
	go func() { second <- c.post("/v1/chat/completions", chatBody("")) }()
	eventually(t, "both legs of the second wait", func() bool {
		return c.prefill[0].State().Waiting == 1 && c.decode[0].State().Waiting == 1
	})
	if s := c.prefill[0].State(); s.PrefillsDone != 1 || s.Running != 0 {
		t.Errorf("prefill: %d done, %d running", s.PrefillsDone, s.Running)
	}
	_ = first.Close()
	if got := <-second; got.status != 200 {
		t.Errorf("%d: %s", got.status, got.body)
	}
}

// brokenRoom answers both legs of pairs with one prefill server as SGLang does when a
// transfer failed.
type brokenRoom struct {
	next      http.RoundTripper
	prefill   string // host
	bootstrap string // a field that only its pairs name
}

func (b brokenRoom) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	_ = req.Body.Close()
	if err != nil {
		return nil, err
	}
	if req.URL.Host != b.prefill && !bytes.Contains(body, []byte(b.bootstrap)) {
		req.Body = io.NopCloser(bytes.NewReader(body))
		return b.next.RoundTrip(req)
	}
	answer := `{"object":"error","message":"KVTransferError(bootstrap_room=7): Failed to send kv chunk","code":500}`
	return &http.Response{StatusCode: 500, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(answer)), Request: req}, nil
}

// Both legs say that the transfer failed: their link is charged, no server is blamed,
// and the request goes to another pair.
func TestSGLang_AFailedTransferIsChargedToItsLink(t *testing.T) {
	c := newCluster(t, shape{prefill: 2, decode: 1, engine: sglangEngine})
	_, port, err := net.SplitHostPort(c.prefill[0].State().KVAddress)
	if err != nil {
		t.Fatal(err)
	}
	bad := strings.TrimPrefix(c.prefill[0].URL(), "http://")
	c.node.orchestrator.Transport = brokenRoom{c.node.orchestrator.Transport, bad, `"bootstrap_port":` + port}
	met := func() float64 { return c.metric("tandem_retries_total") }
	for i := 0; i < 6 || met() == 0 && i < 200; i++ { // the other one may look faster
		if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 || got.header.Get("X-Tandem-Prefill") == bad {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	if n := met(); n == 0 || n > 3 {
		t.Errorf("%v requests met the failing link", n)
	}
	c.breakersAreClosed(append(c.prefill, c.decode...))
}

func TestSGLang_AClientThatLeavesFreesBothLegs(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: sglangEngine})
	c.prefill[0].SetFault(engine.Fault{Kind: engine.FaultHangBeforeHeaders})
	for _, body := range []string{chatBody(""), chatBody(`,"stream":true`)} {
		conn := c.dialRequest(body)
		engines := append(c.prefill, c.decode...)
		eventually(t, "both legs wait", func() bool { return sum(engines, func(s engine.State) int { return s.ServerLoad }) == 2 })
		_ = conn.Close()
		eventually(t, "both are cancelled", func() bool { return sum(engines, func(s engine.State) int { return s.ServerLoad + s.Waiting }) == 0 })
	}
	c.checkIdle(2)
}

func TestSGLang_CachedTokensArePrefills(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: sglangEngine})
	for i, want := range []bool{false, true} {
		got := c.post("/v1/chat/completions", chatBody(""))
		cached := gjson.Get(got.body, "usage.prompt_tokens_details.cached_tokens").Int()
		if got.status != 200 || (cached > 0) != want {
			t.Errorf("request %d: %d, %d cached tokens: %s", i, got.status, cached, got.body)
		}
	}
}

// newNative has SGLang servers whose own API is open.
func newNative(t *testing.T) *cluster { return newNativeWith(t, func(*config) {}) }

func newNativeWith(t *testing.T, change func(*config)) *cluster {
	return newCluster(t, shape{prefill: 1, decode: 1, engine: sglangEngine, config: func(cfg *config) {
		change(cfg)
		for i := range cfg.servers[:2] {
			cfg.servers[i].specs[0].Native = true
		}
	}})
}

func TestSGLang_GenerateMergesLogprobsOfBothLegs(t *testing.T) {
	c := newNative(t)
	whole := startTestEngine(t, engine.RoleBoth, sglangEngine) // prefills and decodes: the truth
	prompts := fmt.Sprintf(`["the river and the city",%q]`, longPrompt[:300])
	for _, body := range []string{
		`{"text":"the river and the city of stone","sampling_params":{"max_new_tokens":7}}`,
		`{"text":"the river and the city of stone","return_logprob":true,"logprob_start_len":0,"sampling_params":{"max_new_tokens":7}}`,
		`{"text":"the river and the city of stone","return_logprob":true,"logprob_start_len":2,"stream":true,"sampling_params":{"max_new_tokens":7}}`,
		`{"text":` + prompts + `,"return_logprob":true,"logprob_start_len":0,"sampling_params":{"max_new_tokens":4}}`,
		`{"input_ids":[17,18,19,20,21,22],"stream":true,"sampling_params":{"max_new_tokens":4}}`,
	} {
		got, want := c.post("/generate", body), askEngine(t, whole, "/generate", body)
		if got.status != 200 || got.err != nil || len(got.events) != len(want.events) {
			t.Fatalf("%s: %d %v %s", body, got.status, got.err, got.body)
		}
		for i, answer := range append(got.events, got.body) {
			truth := append(want.events, want.body)[i]
			if i == len(got.events) && len(got.events) > 0 {
				break
			}
			for _, path := range []string{"text", "output_ids", "meta_info.input_token_logprobs", "meta_info.output_token_logprobs", "meta_info.finish_reason",
				"#.text", "#.meta_info.input_token_logprobs", "#.meta_info.output_token_logprobs"} {
				if a, b := gjson.Get(answer, path).Raw, gjson.Get(truth, path).Raw; a != b {
					t.Errorf("%.60s: %s is %.200s, want %.200s", body, path, a, b)
				}
			}
		}
	}
	c.nothingIsLeft(6)
}

func TestSGLang_GenerateIsBoundByTheKey(t *testing.T) {
	c := newNativeWith(t, withKeys(t, "sk-ada tenant=ada max-samples=2 max-output-tokens=8"))
	for body, want := range map[string]int{
		`{"text":"the river","extra_key":"theirs","sampling_params":{"max_new_tokens":4}}`: 200,
		`{"text":"the river","sampling_params":{"max_new_tokens":9}}`:                      400,
		`{"text":"the river"}`: 400,
		`{"text":"the river","sampling_params":{"max_new_tokens":4,"n":3}}`: 400,
	} {
		if got := c.post("/generate", body, "Authorization", "Bearer sk-ada"); got.status != want {
			t.Errorf("%s: %d %s", body, got.status, got.body)
		}
		if got := c.post("/generate", body); got.status != 401 {
			t.Errorf("without a key: %d", got.status)
		}
	}
	legs := append(requests(c.prefill, "/generate"), requests(c.decode, "/generate")...)
	if len(legs) != 2 {
		t.Fatalf("%d legs", len(legs))
	}
	for _, r := range legs {
		if salt := gjson.Get(r.Body, "extra_key").String(); len(salt) != 32 {
			t.Errorf("an engine got the salt %q", salt)
		}
	}
}

func TestSGLang_GenerateIsOpenOnlyWhereAPoolSaysSo(t *testing.T) {
	closed := newCluster(t, shape{prefill: 1, decode: 1, engine: sglangEngine})
	if got := closed.post("/generate", `{"text":"hi"}`); got.status != 404 {
		t.Errorf("%d %s", got.status, got.body)
	}
	c := newNative(t)
	got := c.post("/generate", `{"text":"the river","rid":"x","lora_path":"/etc/passwd","custom_logit_processor":"code","bootstrap_room":1,"model":"test-model","sampling_params":{"max_new_tokens":2}}`)
	if got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	for _, r := range append(requests(c.prefill, "/generate"), requests(c.decode, "/generate")...) {
		for _, field := range []string{"rid", "lora_path", "custom_logit_processor", "model"} {
			if gjson.Get(r.Body, field).Exists() {
				t.Errorf("%s reached an engine: %s", field, r.Body)
			}
		}
		if gjson.Get(r.Body, "bootstrap_room").Int() == 1 {
			t.Error("a client chose the room")
		}
	}
	for _, body := range []string{`{}`, `{"text":7}`, `{"text":[]}`, `{"text":"x","stream":"yes"}`, `{"text":"x","model":"other"}`} {
		if got := c.post("/generate", body); got.status != 400 && got.status != 404 {
			t.Errorf("%s: %d %s", body, got.status, got.body)
		}
	}
}

func TestSGLang_GenerateThatBreaksIsAnError(t *testing.T) {
	c := newNative(t)
	c.decode[0].SetFault(engine.Fault{Kind: engine.FaultDieAfterTokens, Tokens: 3})
	got := c.post("/generate", `{"text":"the river and the city of stone","stream":true,"sampling_params":{"max_new_tokens":9,"ignore_eos":true}}`)
	if last := got.events[len(got.events)-1]; got.status != 200 || !gjson.Get(last, "error.message").Exists() {
		t.Errorf("%d %q", got.status, got.events)
	}
}

// SGLang's /health asks the scheduler, which may compute for longer than a probe waits: the
// gateway asks /ready, and an engine that has none by its other answers.
func TestSGLang_ABusySchedulerIsNotDown(t *testing.T) {
	t.Parallel()
	for name, old := range map[string]bool{"with ready": false, "without": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, shape{prefill: 1, decode: 1, engine: func(cfg *engine.Config) { sglangEngine(cfg); cfg.NoReady = old }})
			busy := c.prefill[0]
			busy.SetFault(engine.Fault{Kind: engine.FaultHangBeforeHeaders, Path: "/health"})
			probes := func() int { return busy.State().RequestsByPath["/v1/models"] }
			before := probes()
			eventually(t, "probes go on", func() bool { return probes() > before+5 })
			if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 || got.header.Get("X-Tandem-Prefill") == "" {
				t.Errorf("%d %s", got.status, got.body)
			}
			if asked := busy.State().RequestsByPath["/health"]; old && asked != 1 || !old && asked != 0 {
				t.Errorf("/health was asked %d times", asked)
			}
		})
	}
}

// An SGLang with encoder servers (--language-only --encoder-urls) brings what they made of an image to
// its language servers by itself: both legs have to get the client's messages byte for byte.
func TestSGLang_ImagesReachBothLegsAsTheyWere(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: sglangEngine})
	messages := `[{"role":"user","content":[{"type":"image_url", "image_url":{"url":"data:image/png;base64,aGFyYm91cg==","detail":"low"}},` +
		`{"type":"text","text":"` + longPrompt + `"}]}]`
	for _, stream := range []string{"", `,"stream":true`} {
		got := c.post("/v1/chat/completions", `{"model":"test-model","max_tokens":9,"messages":`+messages+stream+`}`)
		if got.status != 200 || got.err != nil || got.header.Get("X-Tandem-Prefill") == "" {
			t.Fatalf("%d %v, prefilled by %q: %.300s", got.status, got.err, got.header.Get("X-Tandem-Prefill"), got.body)
		}
	}
	for leg, e := range map[string]*engine.Engine{"prefill": c.prefill[0], "decode": c.decode[0]} {
		n := 0
		for _, r := range e.State().Requests {
			if r.Path != "/v1/chat/completions" {
				continue
			}
			if n++; gjson.Get(r.Body, "messages").Raw != messages {
				t.Errorf("%s received %.300s", leg, r.Body)
			}
		}
		if n != 2 {
			t.Errorf("%s received %d chats", leg, n)
		}
	}
}
