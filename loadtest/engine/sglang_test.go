package engine

import (
	"testing"
	"time"
)

// SGLang's /health makes a token, and looks for it once a second: a scheduler that computes
// a long chunk lets it wait. Its /ready does not ask the scheduler.
func TestSGLang_HealthWaitsForTheScheduler(t *testing.T) {
	e := start(t, func(cfg *Config) {
		cfg.Connector, cfg.Role, cfg.TimeScale = ConnectorSGLang, RoleBoth, 0.2
	})
	began := time.Now()
	if status, body := get(t, e.URL()+"/health"); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	if took := time.Since(began); took < 150*time.Millisecond {
		t.Errorf("/health of an idle engine took %v", took)
	}
	began = time.Now()
	if status, body := get(t, e.URL()+"/ready"); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	if took := time.Since(began); took > 150*time.Millisecond {
		t.Errorf("/ready took %v", took)
	}
	old := start(t, func(cfg *Config) { cfg.Connector, cfg.NoReady = ConnectorSGLang, true })
	if status, _ := get(t, old.URL()+"/ready"); status != 404 {
		t.Errorf("/ready of an older engine: %d", status)
	}
}

// SGLang counts with its tokenizer alone (srt/entrypoints/anthropic/serving.py, handle_count_tokens): a server of a
// pair has no bootstrap room to ask for.
func TestSGLang_CountsTokensWithoutABootstrapRoom(t *testing.T) {
	for _, role := range []string{RolePrefill, RoleDecode} {
		e := start(t, func(cfg *Config) { cfg.Connector, cfg.Role = ConnectorSGLang, role })
		messages := []fields{{"role": "user", "content": "the river"}}
		want := len(ask[tokenizeAnswer](t, e, "/tokenize", fields{"messages": messages}).Tokens)
		if got := ask[map[string]int](t, e, "/v1/messages/count_tokens", fields{"messages": messages})["input_tokens"]; got != want || want == 0 {
			t.Errorf("%s: %d tokens, /tokenize has %d", role, got, want)
		}
	}
}
