package explain

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cockroachdb/datadriven"

	"github.com/tandem-gateway/tandem/cmd/internal/adminport"
	"github.com/tandem-gateway/tandem/gateway"
	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pd/cost"
)

// What is printed of a decision, in text files that a person can dispute. Regenerate with:
// go test ./cmd/internal/explain -run Golden -rewrite
func TestPrint_Golden(t *testing.T) {
	datadriven.RunTest(t, "testdata/printed.txt", func(t *testing.T, d *datadriven.TestData) string {
		var decision gateway.DecisionStatus
		if err := json.Unmarshal([]byte(d.Input), &decision); err != nil {
			d.Fatalf(t, "%v", err)
		}
		return printed(t, decision, d.Cmd == "wide")
	})
}

func printed(t *testing.T, d gateway.DecisionStatus, wide bool) string {
	t.Helper()
	var out strings.Builder
	if err := Print(&out, d, wide); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// largeDecision is one with 12 servers with the longest names that a host may have, all terms
// of which are there.
func largeDecision() gateway.DecisionStatus {
	a := gateway.ChoiceStatus{
		PromptTokens: 123456, OutputTokens: 1234, Waited: 123456, Price: 12.5, TTFT: 5000, ITL: 80, AggregatedBecause: "no_pair",
		Differ: strings.Repeat("block_tokens: 32 (prefill), 16 (decode); ", 6), Outcome: "decode on " + strings.Repeat("x", 250) + ": status 502",
		Tokens: gateway.TokensStatus{Unknown: string(tokens.Wrong), Because: tokens.Wrong.Text(), Guessed: true},
	}
	name := func(role string, i int) string {
		return fmt.Sprintf("%s-%d.%s.svc.cluster.local:8000/dp%d", role, i, strings.Repeat("long-", 40), i)
	}
	for p := range 6 {
		for d := range 6 {
			a.Alternatives = append(a.Alternatives, cost.Explained{
				Prefill: name("prefill", p), Decode: name("decode", d), Chosen: p+d == 0, Total: 123456.7, First: 123456.7, FirstGap: 123456.7, Ready: 4321.1, Queue: 12345.6, Compute: 12345.6,
				Transfer: 12345.6, KVRoom: 12345.6, Step: 123.4, DecodeCost: 12345.6, DelayToOthers: 12345.6, HardwareMismatch: 12.3, Misses: 2,
				PrefillCached: 123456, PrefillCPU: 123456, PrefillDisk: 12345, DecodeCached: 123456, Moved: 12e9,
			})
		}
	}
	return gateway.DecisionStatus{RequestID: strings.Repeat("r", 128), API: "chat", Model: strings.Repeat("m", 90), Outcome: "served", Attempts: []gateway.ChoiceStatus{a}}
}

// No line is longer than a terminal is wide, whatever servers are called; each server can be
// told by its line below, and what is left out is named.
func TestPrint_FitsTheWidth(t *testing.T) {
	text := printed(t, largeDecision(), false)
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > Width {
			t.Errorf("%d characters: %s", n, line)
		}
	}
	for _, want := range []string{"P6 = prefill-5.", "D6 = decode-5.", "/dp5\n", "P6 D6", "not shown for want of width: step, moved MB", "total"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

// All columns are there where width is no matter, and the names of servers in full.
func TestPrint_WideShowsAll(t *testing.T) {
	d := largeDecision()
	text := printed(t, d, true)
	for _, name := range Columns() {
		for word := range strings.FieldsSeq(name) {
			if !strings.Contains(text, word) {
				t.Errorf("%q is not in the table", word)
			}
		}
	}
	if e := d.Attempts[0].Alternatives[35]; !strings.Contains(text, e.Prefill) || !strings.Contains(text, e.Decode) {
		t.Error("a server is not named in full")
	}
}

// A column that says nothing of any alternative is left out, and comes back when it says
// something of one.
func TestPrint_LeavesOutWhatIsZeroThroughout(t *testing.T) {
	d := gateway.DecisionStatus{Attempts: []gateway.ChoiceStatus{{Alternatives: []cost.Explained{
		{Prefill: "p", Decode: "d", Total: 2, First: 1, Compute: 1}, {Decode: "d", Total: 3, First: 2, Compute: 2},
	}}}}
	head := func() string {
		for line := range strings.Lines(printed(t, d, false)) {
			if strings.Contains(line, "total") && !strings.Contains(line, "=") {
				return strings.Join(strings.Fields(line), " ")
			}
		}
		return ""
	}
	if got := head(); got != "prefill decode total token prefill" {
		t.Errorf("the head is %q", got)
	}
	d.Attempts[0].Alternatives[1].DecodeCached = 10
	if got := head(); got != "prefill decode total token prefill holds" {
		t.Errorf("the head is %q", got)
	}
}

// A reader of JSON has what the admin port says, to the last field.
func TestPrintJSON_IsWhatTheAdminPortSays(t *testing.T) {
	d := largeDecision()
	var out strings.Builder
	if err := PrintJSON(&out, d); err != nil {
		t.Fatal(err)
	}
	var back gateway.DecisionStatus
	if err := json.Unmarshal([]byte(out.String()), &back); err != nil {
		t.Fatal(err)
	}
	a, b := back.Attempts[0], d.Attempts[0]
	if back.RequestID != d.RequestID || a.Tokens != b.Tokens || len(a.Alternatives) != len(b.Alternatives) || a.Alternatives[0] != b.Alternatives[0] {
		t.Errorf("%+v", back)
	}
}

// The example of the document is printed as it stands there.
func TestPrint_TheDocumentsExample(t *testing.T) {
	document, err := os.ReadFile("../../../docs/explain.md")
	if err != nil {
		t.Fatal(err)
	}
	golden, err := os.ReadFile("testdata/printed.txt")
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(document), "```\n")
	example, _, _ = strings.Cut(example, "```")
	if len(example) < 500 || !strings.Contains(string(golden), "\n----\n"+example+"----\n") {
		t.Errorf("not printed so:\n%s", example)
	}
}

// A request is found by the beginning of its id that lists show, where it is that of one alone.
func TestFetch_TheBeginningOfAnIDIsEnough(t *testing.T) {
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/debug/decisions":
			_, _ = w.Write([]byte(`{"decisions":[{"request_id":"req-ab12"},{"request_id":"req-ab34"},{"request_id":"req-cd56"},{"request_id":"req-cd56"}]}`))
		case "/debug/decisions/req-cd56", "/debug/decisions/req-ab12":
			_, _ = fmt.Fprintf(w, `{"request_id":%q}`, path.Base(r.URL.Path))
		default:
			http.Error(w, "no decision is remembered for this request id", http.StatusNotFound)
		}
	}))
	defer admin.Close()
	for id, want := range map[string]string{
		"req-cd...": "req-cd56", "req-c": "req-cd56", "req-ab12": "req-ab12",
		"req-a": "2 requests begin with req-a, among them req-ab12 and req-ab34", "req-x": "no gateway remembers request req-x",
	} {
		d, err := Fetch(t.Context(), adminport.Port{Address: admin.URL}, id)
		if d.RequestID != want && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %q, %v", id, d.RequestID, err)
		}
	}
}

// That a request is not remembered is said once, and by whom it may be all the same.
func TestFetch_SaysOnceThatNoGatewayRemembersARequest(t *testing.T) {
	for silent, want := range map[string]string{
		"":                                    "no gateway remembers request req-x (--decision-history)",
		"\nno answer of replica b: timed out": "no gateway remembers request req-x (--decision-history)\nno answer of replica b: timed out",
	} {
		admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no decision is remembered for this request id"+silent, http.StatusNotFound)
		}))
		if _, err := Fetch(t.Context(), adminport.Port{Address: admin.URL}, "req-x"); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
		admin.Close()
	}
}
