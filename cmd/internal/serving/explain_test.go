package serving

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/cmd/internal/adminport"
	"github.com/tandem-gateway/tandem/cmd/internal/explain"
	"github.com/tandem-gateway/tandem/gateway"
	"github.com/tandem-gateway/tandem/kvstate/tokens"
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
		"total", "first token", "prefill", "transfer", "step", "alone", "->", "served", got.header.Get("X-Tandem-Decode"), got.header.Get("X-Tandem-Prefill"),
		"predicted  measured", "queue + prefill", "prompt tokens",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("%q is not in\n%s", want, table)
		}
	}
}

// The document says what each column is, and why tokens may not be known.
func TestExplain_TheDocumentHasEveryColumnAndReason(t *testing.T) {
	document, err := os.ReadFile("../../../docs/explain.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range explain.Columns() {
		if !strings.Contains(string(document), "\n| "+name+" |") {
			t.Errorf("column %q is not explained", name)
		}
	}
	for _, r := range tokens.Reasons() {
		if !strings.Contains(string(document), fmt.Sprintf("\n| `%s` | %s |", string(r), r.Text())) || r.Text() == "" {
			t.Errorf("reason %q is not explained as %q", string(r), r.Text())
		}
	}
}

// explained is what `tandem explain` gets and prints of a request.
func (c *cluster) explained(id string) (d gateway.DecisionStatus, table string) {
	c.t.Helper()
	d, err := explain.Fetch(c.t.Context(), adminport.Port{Address: c.admin}, id)
	if err != nil {
		c.t.Fatal(err)
	}
	var out strings.Builder
	if err := explain.Print(&out, d, false); err != nil {
		c.t.Fatal(err)
	}
	return d, out.String()
}
