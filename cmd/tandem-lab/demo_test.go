package main

import (
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/testlog"
)

// The demo shows a short prompt that runs on decode alone, a long one that has a pair, and from
// which length on a pair pays.
func TestDemo_ShowsAShortPromptAndAPair(t *testing.T) {
	t.Parallel()
	var out testlog.Buffer
	d := demo{listen: "127.0.0.1:0", admin: "127.0.0.1:0", once: true, out: &out, engine: testPrograms(t).Engine}
	if err := d.run(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	var prefill, decode []string
	for line := range strings.Lines(out.String()) {
		if server, ok := strings.CutPrefix(line, "prefill   "); ok && !strings.Contains(line, "pid") {
			prefill = append(prefill, strings.TrimSpace(server))
		}
		if server, ok := strings.CutPrefix(line, "decode    "); ok && !strings.Contains(line, "pid") {
			decode = append(decode, strings.TrimSpace(server))
		}
	}
	if len(prefill) != 2 || len(decode) != 2 || !strings.HasPrefix(prefill[0], "none") ||
		!strings.HasPrefix(prefill[1], "127.") || !strings.HasPrefix(decode[1], "127.") || prefill[1] == decode[1] {
		t.Errorf("prefill on %q, decode on %q", prefill, decode)
	}
	for _, want := range []string{"A prompt of fewer than ", "curl -N"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q", want)
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}
}
