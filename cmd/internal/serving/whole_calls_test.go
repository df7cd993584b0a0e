package serving

import (
	"bufio"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// A tool's argument may be a file, which many parsers tell when it is complete: the engine is at work meanwhile.
func TestTools_ACallThatIsToldWholeIsNoSilence(t *testing.T) {
	t.Parallel()
	arguments := `{"path": "a.txt", "text": "` + strings.Repeat("the river and the city of stone ", 130) + `"}`
	body := `{"model":"test-model","max_tokens":3000,"stream":true,"messages":[{"role":"user","content":` + quoted("write("+arguments+")") + `}],` +
		`"tools":[{"type":"function","function":{"name":"write","parameters":{"type":"object"}}}]}`
	const limit = 3 * time.Second
	c := newCluster(t, shape{
		prefill: 1, decode: 1, engine: func(cfg *engine.Config) { saltsMessages(cfg); cfg.TimeScale, cfg.WholeCalls = 1, true },
		config: func(cfg *config) { cfg.pd.FirstEventTimeout, cfg.pd.IdleTimeout = limit, limit },
	})
	began := time.Now()
	got := c.post(chatPath, body)
	var said strings.Builder
	for _, event := range got.events {
		said.WriteString(gjson.Get(event, "choices.0.delta.tool_calls.0.function.arguments").String())
	}
	if got.status != 200 || got.err != nil || !sameJSON(said.String(), arguments) {
		t.Errorf("%d %v %.300s", got.status, got.err, got.body)
	}
	if n := c.metric("tandem_retries_total"); n != 0 || time.Since(began) < limit {
		t.Errorf("%v legs were given up, in %v", n, time.Since(began))
	}
}

// Meanwhile vLLM may send comments, which keep the connections of load balancers open: the client gets them at once.
func TestTools_ACommentInASilenceGoesToTheClientAtOnce(t *testing.T) {
	t.Parallel()
	body := `{"model":"test-model","max_tokens":3900,"stream":true,"messages":[{"role":"user","content":` + quoted("write("+`{"text": "`+strings.Repeat("the river and the city of stone ", 130)+`"})`) + `}],` +
		`"tools":[{"type":"function","function":{"name":"write","parameters":{"type":"object"}}}]}`
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: func(cfg *engine.Config) {
		saltsMessages(cfg)
		cfg.TimeScale, cfg.WholeCalls, cfg.ReasoningTokens, cfg.KeepAlive = 1, true, 5, 100*time.Millisecond
	}})
	conn := c.dialRequest(body)
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(conn)
	for comments := 0; comments < 25; {
		switch {
		case !lines.Scan():
			t.Fatalf("%d comments, %v", comments, lines.Err())
		case strings.HasPrefix(lines.Text(), ":"):
			comments++
		}
	}
	if n := sum(c.decode, func(s engine.State) int { return s.Running }); n != 1 {
		t.Error("they came with the call")
	}
}

func sameJSON(a, b string) bool {
	var of, other any
	return json.Unmarshal([]byte(a), &of) == nil && json.Unmarshal([]byte(b), &other) == nil && reflect.DeepEqual(of, other)
}
