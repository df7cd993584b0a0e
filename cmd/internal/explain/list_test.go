package explain

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/tandem-gateway/tandem/gateway"
	"github.com/tandem-gateway/tandem/pd/cost"
)

func measuredOf(first float64, prompt, cached, output int) gateway.MeasuredStatus {
	return gateway.MeasuredStatus{FirstToken: &first, PromptTokens: &prompt, CachedTokens: &cached, OutputTokens: &output}
}

// aList has a pair, a request whose client left, a retry that ended on decode alone, and one that got no server.
func aList() gateway.DecisionList {
	at := time.Date(2026, 11, 20, 13, 6, 39, 0, time.Local)
	return gateway.DecisionList{Silent: map[string]string{"gw-2": "connection refused", "gw-1": "deadline exceeded"}, Decisions: []gateway.DecisionStatus{
		{RequestID: "req-9052028b-2569-4cfb", At: at.Add(2 * time.Second), Outcome: "no decode server"},
		{RequestID: "short", At: at.Add(time.Second), Outcome: "served", Attempts: []gateway.ChoiceStatus{
			{PromptTokens: 9, Alternatives: []cost.Explained{{Prefill: "10.0.0.1:8000", Decode: "10.0.0.3:8000", Chosen: true, First: 9}}},
			{PromptTokens: 12, Alternatives: []cost.Explained{{Decode: "10.0.0.2:8000", Chosen: true, First: 42.2}}, Measured: measuredOf(40, 12, 0, 5)},
		}},
		{RequestID: "req-c", At: at, Outcome: "client left", Attempts: []gateway.ChoiceStatus{
			{PromptTokens: 9, Outcome: "client left", Alternatives: []cost.Explained{{Decode: "10.0.0.2:8000", Chosen: true, First: 42.2}}},
		}},
		{RequestID: "req-b", At: at, Outcome: "served", Attempts: []gateway.ChoiceStatus{
			{PromptTokens: 3434, Alternatives: []cost.Explained{{Prefill: "10.0.0.1:8000", Decode: "10.0.0.3:8000", Chosen: true, First: 128.3}}, Measured: measuredOf(131.9, 3434, 2464, 24)},
		}},
	}}
}

// What a person reads of the last requests: of each the attempt that the client got.
func TestPrintAll_Golden(t *testing.T) {
	var out strings.Builder
	PrintSilent(&out, aList())
	if err := PrintAll(&out, aList(), false); err != nil {
		t.Fatal(err)
	}
	const want = `no answer of gateway gw-1: deadline exceeded
no answer of gateway gw-2: connection refused
first token in ms as predicted and measured; tokens
at        request           pair  predicted  measured  prompt  cached  output  tries
13:06:41  req-90520...         -          -         -       -       -       -      0  no decode s...
13:06:40  short         alone D1       42.2      40.0      12       0       5      2
13:06:39  req-c         alone D1       42.2         -       9       -       -      1  client left
13:06:39  req-b            P1 D2      128.3     131.9    3434    2464      24      1
P1 = 10.0.0.1:8000
D1 = 10.0.0.2:8000
D2 = 10.0.0.3:8000
`
	if got := out.String(); got != want {
		t.Errorf("%s", got)
	}
}

// No line is longer than a terminal is wide, unless that is no matter.
func TestPrintAll_FitsTheWidth(t *testing.T) {
	large := largeDecision()
	list := gateway.DecisionList{Decisions: append(aList().Decisions, large)}
	for _, wide := range []bool{false, true} {
		var out strings.Builder
		if err := PrintAll(&out, list, wide); err != nil {
			t.Fatal(err)
		}
		longest := 0
		for line := range strings.Lines(out.String()) {
			longest = max(longest, utf8.RuneCountInString(strings.TrimRight(line, "\n")))
		}
		if fits := longest <= Width; fits == wide {
			t.Errorf("wide %v: a line has %d characters", wide, longest)
		}
	}
}

// A line of JSON is a decision, the oldest first, as a log is written.
func TestPrintAllJSON_IsALog(t *testing.T) {
	var out strings.Builder
	if err := PrintAllJSON(&out, aList()); err != nil {
		t.Fatal(err)
	}
	ids := ""
	for line := range strings.Lines(out.String()) {
		var d gateway.DecisionStatus
		if err := json.Unmarshal([]byte(line), &d); err != nil {
			t.Fatal(err)
		}
		ids += d.RequestID + " "
	}
	if ids != "req-b req-c short req-9052028b-2569-4cfb " {
		t.Error(ids)
	}
}
