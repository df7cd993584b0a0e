package main

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/testlog"
)

// The demo shows a short prompt that runs on decode alone, a long one that has a pair, from which
// length on a pair pays, and on request a trace.
func TestDemo_ShowsAShortPromptAndAPair(t *testing.T) {
	t.Parallel()
	var out testlog.Buffer
	d := demo{listen: "127.0.0.1:0", admin: "127.0.0.1:0", once: true, trace: true, out: &out, engine: testPrograms(t).Engine}
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
	for _, want := range []string{"A prompt of fewer than ", "curl -N", "[0] request  at 0.0 ms", "\n└─ ", "tandem.ttft_predicted_seconds="} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q", want)
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

// Where another program has the port, the error says how to take another one.
func TestDemo_SaysHowToTakeAnotherPort(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	d := demo{listen: taken.Addr().String(), admin: "127.0.0.1:0", once: true, out: io.Discard, engine: testPrograms(t).Engine}
	if err := d.run(t.Context()); err == nil || !strings.Contains(err.Error(), "--listen") {
		t.Errorf("%v", err)
	}
}

// What --with asks for is refused before anything starts, and the error says what to change.
func TestFindServices_SaysWhatIsWrong(t *testing.T) {
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "jaeger"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	for _, c := range []struct {
		with, otlp, want string
	}{
		{"kafka", "", `"kafka" is none of redis, prometheus, jaeger`},
		{"redis,jaeger,prometheus", "", "not on the PATH: redis-server, prometheus;"},
		{"jaeger", "http://127.0.0.1:4318", "--with jaeger beside --otlp-endpoint or --trace"},
	} {
		if _, err := findServices(strings.Split(c.with, ","), c.otlp); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("--with %s: %v, want %q", c.with, err, c.want)
		}
	}
	if found, err := findServices([]string{"jaeger"}, ""); err != nil || !found.wants("jaeger") || found.wants("redis") {
		t.Errorf("%+v, %v", found, err)
	}
}
