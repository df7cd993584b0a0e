package main

import (
	"strings"
	"testing"
)

// What a user does who asks why: the id of an answer, and a table that names every term.
func TestExplain_SaysWhyInOneTable(t *testing.T) {
	c := newCluster(t, shape{prefill: 2, decode: 2})
	got := c.post("/v1/chat/completions", chatBody(""))
	if got.status != 200 {
		t.Fatalf("status %d: %s", got.status, got.body)
	}
	d, err := fetchDecision(c.admin, "", got.header.Get("X-Request-Id"))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := printDecision(&out, d); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"total", "first token", "ready", "queue", "prefill", "transfer", "room", "step", "pace", "burden", "prefill holds", "moved MB",
		"(alone)", "->", "served", got.header.Get("X-Tandem-Decode"),
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}
