// Package explain asks a gateway why a request went to the servers it went to, and prints it
// for people.
package explain

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tandem-gateway/tandem/gateway"
	"github.com/tandem-gateway/tandem/pd/cost"
)

// Fetch asks a gateway's admin port for the decision of a request.
func Fetch(admin, token, id string) (gateway.DecisionStatus, error) {
	var d gateway.DecisionStatus
	client := &http.Client{Timeout: 5 * time.Second}
	if !strings.Contains(admin, "://") {
		admin = "http://" + admin
	}
	req, err := http.NewRequest(http.MethodGet, admin+"/debug/decisions/"+url.PathEscape(id), nil)
	if err != nil {
		return d, fmt.Errorf("ask the gateway: %w", err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	if err != nil {
		return d, fmt.Errorf("ask the gateway: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusNotFound {
		return d, fmt.Errorf("the gateway does not remember request %s: it keeps the last 1024, each replica its own", id)
	}
	if resp.StatusCode != http.StatusOK {
		return d, fmt.Errorf("the gateway answered %s", resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(&d); err != nil {
		return d, fmt.Errorf("read the decision: %w", err)
	}
	return d, nil
}

// Print prints a decision as a table of alternatives for each attempt.
func Print(out io.Writer, d gateway.DecisionStatus) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(table, format, args...) } // Flush reports
	say("request %s, %s, model %s, %s: %s\n", d.RequestID, d.API, d.Model, d.At.Format(time.RFC3339), d.Outcome)
	say("times in ms: first token = ready + queue + prefill + transfer + kv room + step; total = first token + decode cost + delay to others + hardware mismatch\n")
	for i := range d.Attempts {
		printAttempt(say, i+1, &d.Attempts[i])
	}
	return table.Flush()
}

func printAttempt(say func(format string, args ...any), number int, a *gateway.ChoiceStatus) {
	say("\nattempt %d, %.0f ms after it came: about %d prompt and %d output tokens", number, a.Waited, a.PromptTokens, a.OutputTokens)
	if a.TTFT > 0 {
		say("; first token wanted within %.0f ms", a.TTFT)
	}
	if a.ITL > 0 {
		say("; gaps of at most %.0f ms", a.ITL)
	}
	say("; a second of prefill costs those who wait %.2f s; %s\n", a.Price, a.Outcome)
	if a.AggregatedBecause != "" {
		say("decode ran alone: %s\n", a.AggregatedBecause)
	}
	if a.Differ != "" {
		say("no prefill and decode server make a pair: %s\n", a.Differ)
	}
	if a.Panic {
		say("more servers are ejected than may be: breakers were ignored\n")
	}
	say("\tprefill\tdecode\ttotal\tfirst token\tready\tqueue\tprefill\ttransfer\tkv room\tstep\tdecode cost\tdelay to others\thardware mismatch\tprefill holds\tdecode holds\tmoved MB\t\n")
	for _, e := range a.Alternatives {
		mark, prefill, note := "", e.Prefill, ""
		if e.Chosen {
			mark = "->"
		}
		if prefill == "" {
			prefill = "(alone)"
		}
		if e.Misses > 0 {
			note = fmt.Sprintf(" misses %d objectives", e.Misses)
		}
		say("%s\t%s\t%s\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%s\t%d\t%.1f\t%s\n", mark, prefill, e.Decode, e.Total, e.First,
			e.Ready, e.Queue, e.Compute, e.Transfer, e.KVRoom, e.Step, e.DecodeCost, e.DelayToOthers, e.HardwareMismatch, heldText(e), e.DecodeCached, e.Moved/1e6, note)
	}
}

// heldText is what the server that prefills holds of the prompt, in tokens: on its GPU,
// and what else it has in slower memory.
func heldText(e cost.Explained) string {
	text := strconv.Itoa(e.PrefillCached)
	if e.PrefillCPU > 0 {
		text += fmt.Sprintf("+%d cpu", e.PrefillCPU)
	}
	if e.PrefillDisk > 0 {
		text += fmt.Sprintf("+%d disk", e.PrefillDisk)
	}
	return text
}
