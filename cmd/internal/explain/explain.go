// Package explain asks a gateway why a request went to the servers it went to, and prints it
// for people.
package explain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tandem-gateway/tandem/cmd/internal/adminport"
	"github.com/tandem-gateway/tandem/gateway"
	"github.com/tandem-gateway/tandem/kvstate/tokens"
)

// Fetch asks a gateway for the decision of a request, which it or one that shares its Redis made. Of
// the last requests the beginning of their id is enough, as lists show it.
func Fetch(ctx context.Context, port adminport.Port, id string) (gateway.DecisionStatus, error) {
	d, err := fetch(ctx, port, id)
	if !errors.Is(err, adminport.ErrNotFound) {
		return d, err
	}
	switch begin := beginning(ctx, port, strings.TrimSuffix(id, "...")); len(begin) {
	case 0:
		// The first line of the answer says the same; the others name gateways that did not answer.
		_, silent, _ := strings.Cut(err.Error(), "\n")
		return d, errors.New(strings.TrimSuffix("no gateway remembers request "+id+" (--decision-history)\n"+silent, "\n"))
	case 1:
		return fetch(ctx, port, begin[0])
	default:
		return d, fmt.Errorf("%d requests begin with %s, among them %s and %s", len(begin), id, begin[0], begin[1])
	}
}

func fetch(ctx context.Context, port adminport.Port, id string) (d gateway.DecisionStatus, err error) {
	err = port.Get(ctx, "/debug/decisions/"+url.PathEscape(id), &d)
	return d, err
}

// recent is how many requests are looked through for the one that an id begins.
const recent = 1000

// beginning are the ids of the last requests that begin so, none where the gateway does not list them.
func beginning(ctx context.Context, port adminport.Port, with string) (ids []string) {
	list, err := FetchAll(ctx, port, 24*time.Hour, recent)
	if err != nil {
		return nil
	}
	for i := range list.Decisions {
		if id := list.Decisions[i].RequestID; strings.HasPrefix(id, with) && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// PrintJSON prints a decision as the admin port has it.
func PrintJSON(out io.Writer, d gateway.DecisionStatus) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	if err := enc.Encode(d); err != nil {
		return fmt.Errorf("print the decision: %w", err)
	}
	return nil
}

// Print prints a decision: for each attempt what was known, what was measured beside what was
// predicted, and a table of the alternatives. No line is longer than Width, unless wide.
func Print(out io.Writer, d gateway.DecisionStatus, wide bool) error {
	p := printer{wide: wide}
	by := ""
	if d.Replica != "" {
		by = ", by gateway " + d.Replica
	}
	p.say("request %s, %s, model %s, %s%s: %s", d.RequestID, d.API, d.Model, d.At.Format(time.RFC3339), by, d.Outcome)
	for i := range d.Attempts {
		p.attempt(i+1, &d.Attempts[i])
	}
	if _, err := io.WriteString(out, p.text.String()); err != nil {
		return fmt.Errorf("print the decision: %w", err)
	}
	return nil
}

// Width is how many characters a line has at most.
const Width = 100

type printer struct {
	text strings.Builder
	wide bool
}

// say prints a line, broken between words where it is too long, and within those that are too
// long themselves.
func (p *printer) say(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	for !p.wide && utf8.RuneCountInString(line) > Width {
		cut := string([]rune(line)[:Width])
		if space := strings.LastIndexByte(cut, ' '); space > 4 {
			cut = cut[:space]
		}
		p.text.WriteString(cut + "\n")
		line = "    " + strings.TrimPrefix(line[len(cut):], " ")
	}
	p.text.WriteString(line + "\n")
}

func (p *printer) attempt(number int, a *gateway.ChoiceStatus) {
	p.say("")
	p.say("attempt %d, %.0f ms after it came: %s", number, a.Waited, a.Outcome)
	p.say("about %d prompt and %d output tokens; a second of prefill costs waiting requests %.2f s", a.PromptTokens, a.OutputTokens, a.Price)
	if wanted := objectives(a); wanted != "" {
		p.say("%s", wanted)
	}
	p.say("%s", knownText(&a.Tokens))
	if a.Among != "" {
		p.say("among %s", a.Among)
	}
	if a.AggregatedBecause != "" {
		p.say("decode ran alone: %s", a.AggregatedBecause)
	}
	if a.Differ != "" {
		p.say("no prefill and decode server make a pair: %s", a.Differ)
	}
	if a.FirstToken != "" {
		p.say("prefill's token: %s", a.FirstToken)
	}
	if a.AnswerKV != nil {
		p.say("the last answer's KV: %s", a.AnswerKV.Text)
	}
	if a.Fetch != "" {
		p.say("KV from decode: %s", a.Fetch)
	}
	if a.Panic {
		p.say("more servers are ejected than may be: breakers were ignored")
	}
	p.measured(a)
	p.alternatives(a)
}

// objectives are those that the request has.
func objectives(a *gateway.ChoiceStatus) string {
	var wanted []string
	if a.TTFT > 0 {
		wanted = append(wanted, fmt.Sprintf("first token wanted within %.0f ms", a.TTFT))
	}
	if a.ITL > 0 {
		wanted = append(wanted, fmt.Sprintf("gaps of at most %.0f ms", a.ITL))
	}
	return strings.Join(wanted, "; ")
}

// ways are how tokens are known.
var ways = map[string]string{
	string(tokens.ByRequest):     "the request has them",
	string(tokens.ByEngine):      "an engine was asked",
	string(tokens.ByTokenize):    "an engine was asked to apply its template",
	string(tokens.ByTranslation): "an engine was asked for the chat that it makes of the request",
	string(tokens.ByTokenizer):   "the gateway's own tokenizer",
	string(tokens.ByPrefill):     "learned from prefills",
}

// knownText is what was known of the prompt's tokens.
func knownText(t *gateway.TokensStatus) string {
	because, way := "", ""
	if t.Because != "" {
		because = ", because " + t.Because
	}
	if how := ways[t.By]; how != "" {
		way = ": " + how
	}
	switch {
	case t.Guessed:
		return "tokens not known" + because + "; what servers hold is guessed by its text"
	case t.Known == 0:
		return "tokens not known" + because + "; nor what servers hold of them"
	case t.Whole:
		return fmt.Sprintf("all %d tokens known%s", t.Known, way)
	}
	return fmt.Sprintf("the first %d tokens known%s", t.Known, way)
}
