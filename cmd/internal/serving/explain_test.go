package serving

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/cmd/internal/explain"
	"github.com/tandem-gateway/tandem/gateway"
)

// What a user does who asks why: the id of an answer, and a table that names every term.
func TestExplain_SaysWhyInOneTable(t *testing.T) {
	c := newCluster(t, shape{prefill: 2, decode: 2})
	got := c.post("/v1/chat/completions", chatBody(""))
	if got.status != 200 {
		t.Fatalf("status %d: %s", got.status, got.body)
	}
	_, table := c.explained(got.header.Get("X-Request-Id"))
	for _, want := range []string{
		"total", "first token", "ready", "queue", "prefill", "transfer", "kv room", "step", "decode cost", "delay to others", "prefill holds", "moved MB",
		"(alone)", "->", "served", got.header.Get("X-Tandem-Decode"),
	} {
		if !strings.Contains(table, want) {
			t.Errorf("%q is not in\n%s", want, table)
		}
	}
}

// The document shows the table as it is printed.
func TestExplain_TheDocumentHasEveryColumn(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1})
	_, table := c.explained(c.post(chatPath, chatBody("")).header.Get("X-Request-Id"))
	document, err := os.ReadFile("../../../docs/explain.md")
	if err != nil {
		t.Fatal(err)
	}
	printed, documented := columns(table), columns(string(document))
	if len(printed) < 10 || !slices.Equal(printed, documented) {
		t.Errorf("printed    %q\ndocumented %q", printed, documented)
	}
}

// columns are the names at the head of the first table of alternatives.
func columns(text string) (names []string) {
	for line := range strings.Lines(text) {
		if !strings.Contains(line, "first token  ready") {
			continue
		}
		for name := range strings.SplitSeq(strings.TrimSpace(line), "  ") {
			if name = strings.TrimSpace(name); name != "" {
				names = append(names, name)
			}
		}
		return names
	}
	return nil
}

// explained is what `tandem explain` gets and prints of a request.
func (c *cluster) explained(id string) (d gateway.DecisionStatus, table string) {
	c.t.Helper()
	d, err := explain.Fetch(c.admin, "", id)
	if err != nil {
		c.t.Fatal(err)
	}
	var out strings.Builder
	if err := explain.Print(&out, d); err != nil {
		c.t.Fatal(err)
	}
	return d, out.String()
}
