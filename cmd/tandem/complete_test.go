package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Shells complete commands, flags, values of settings that have a few, and servers' names, which they
// ask the gateway for; and each of the four shells gets its script.
func TestCompletion(t *testing.T) {
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/debug/servers" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(`[{"id":"10.0.0.1:8000"},{"id":"10.0.0.2:8000/dp1"},{"id":"10.0.1.1:8000"}]`))
	}))
	defer admin.Close()
	for _, c := range []struct {
		line string // of words, the last of which is to be completed
		want []string
		not  string
	}{
		{"re", []string{"replay", "register"}, "links"},
		{"serve --retry-r", []string{"--retry-ratio"}, "--max-wait"},
		{"serve --policy ", []string{"joint", "prefill-first", "least-load", "round-robin", "random"}, ""},
		{"check --binding ", []string{"arrival", "late"}, ""},
		{"replay log --first-token ", []string{"prefill", "decode"}, ""},
		{"drain --admin " + admin.URL + " 10.0.0", []string{"10.0.0.1:8000", "10.0.0.2:8000/dp1"}, "10.0.1.1"},
		{"drain --admin " + admin.URL + " 10.0.0.1:8000 ", nil, "10.0.0"}, // it has its server
		{"drain --admin http://127.0.0.1:1 ", nil, "10.0.0"},              // nobody answers
	} {
		out, err := run(t, append([]string{"__complete"}, strings.Split(c.line, " ")...)...)
		if err != nil || c.not != "" && strings.Contains(out, c.not) {
			t.Errorf("%q: %v\n%s", c.line, err, out)
		}
		for _, want := range c.want {
			if !strings.Contains("\n"+out, "\n"+want) {
				t.Errorf("%q: no %s in\n%s", c.line, want, out)
			}
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if out, err := run(t, "completion", shell); err != nil || !strings.Contains(out, "tandem") {
			t.Errorf("%s: %v, %d bytes", shell, err, len(out))
		}
	}
}
