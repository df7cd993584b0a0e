package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tandem-gateway/tandem/gateway/live"
)

// Size is that of a terminal, in characters. A height of 0 is as many lines as there are.
type Size struct{ Width, Height int }

// line is a line of the view.
type line struct {
	text  string
	state string // how urgent it is: "", warn, bad
}

const (
	warn = "warn"
	bad  = "bad"
)

// Draw is the view of a state, one line each, none wider than the terminal; colour marks lines that
// need somebody.
func Draw(s *live.State, size Size, colour bool) []string {
	lines := slices.Concat(head(s), fit(s, size))
	if size.Height > 0 {
		lines = lines[:min(len(lines), size.Height)]
	}
	out := make([]string, 0, len(lines))
	for _, l := range lines {
		text := clipped(strings.TrimRight(l.text, " "), size.Width)
		if colour && l.state != "" {
			text = map[string]string{warn: "\x1b[33m", bad: "\x1b[31m"}[l.state] + text + "\x1b[0m"
		}
		out = append(out, text)
	}
	return out
}

// apart is said of a gateway whose Redis is away.
const apart = "Redis does not answer"

// head says how the gateway is, and what the last minute was.
func head(s *live.State) []line {
	g, p := &s.Gateway, &s.History.Lately
	ready := line{text: strings.Join(nonEmpty("tandem", g.Replica, g.Version, "ready", s.At.Format(time.TimeOnly)), "  ")}
	if !g.Ready {
		ready = line{strings.Join(nonEmpty("tandem", g.Replica, g.Version, "NOT READY: "+g.Why, s.At.Format(time.TimeOnly)), "  "), bad}
	}
	if g.Apart {
		ready = line{ready.text + "  " + apart, cmp.Or(ready.state, warn)}
	}
	failed := ""
	if p.Failed > 0 {
		failed = bad
	}
	of, waiting, inFlight := cmp.Or(s.History.Model, "all models"), 0, 0
	for i := range s.Gateways {
		waiting, inFlight = waiting+s.Gateways[i].Waiting, inFlight+s.Gateways[i].InFlight
	}
	if s.History.Model != "" && !isServed(s, s.History.Model) {
		return []line{ready, {"no server serves " + s.History.Model + ", and nobody has asked for it within the history", bad}}
	}
	return []line{
		ready,
		{fmt.Sprintf("%s, last minute: %.1f answers/s, %d failed; now %d waiting, %d in flight", of, perSecond(p), p.Failed, waiting, inFlight), failed},
		{text: fmt.Sprintf("TTFT p50 %s p99 %s   ITL p50 %s p99 %s   cached %s, predicted %s",
			some(p.First, p.TTFT50), some(p.First, p.TTFT99), some(p.Gaps, p.ITL50), some(p.Gaps, p.ITL99), share(p.Cached), share(p.Predicted))},
		{text: "TTFT mean: " + parts(&p.Parts)},
	}
}

// perSecond is how many answers there were in each second that was counted.
func perSecond(p *live.Point) float64 { return float64(p.Answers) / cmp.Or(p.Seconds, 60) }

// isServed reports whether a server has the model, or requests for it are known.
func isServed(s *live.State, model string) bool {
	if slices.ContainsFunc(s.Models, func(m live.Model) bool { return m.ID == model }) {
		return true
	}
	return slices.ContainsFunc(s.Servers, func(of live.Server) bool {
		return slices.Contains(of.Models, model) || slices.ContainsFunc(of.Adapters, func(a live.Adapter) bool { return a.Name == model })
	})
}

// parts are what the time to the first token went to, those that took some.
func parts(p *live.Parts) string {
	var shown []string
	for _, part := range []struct {
		name string
		ms   float64
	}{
		{"wait", p.Wait}, {"choice and retries", p.Retry}, {"prefill", p.Prefill}, {"transfer", p.Transfer},
		{"prefill and transfer", p.Together}, {"decode alone", p.Aggregated},
	} {
		if part.ms > 0 {
			shown = append(shown, part.name+" "+ms(part.ms))
		}
	}
	return cmp.Or(strings.Join(shown, ", "), "no stream has begun")
}

// fit is the sections, as many lines of each as the height allows: half of it for servers, the rest
// for decisions, of which the newest come first.
func fit(s *live.State, size Size) []line {
	gateways, servers, pairs, pools, decisions := gatewayLines(s), serverLines(s), pairLines(s), poolLines(s), decisionLines(s)
	if size.Height > 0 {
		gateways = cut(gateways, 6, "gateways")
		left := max(0, size.Height-4-len(gateways))
		pairs, pools = cut(pairs, 6, "pairs"), cut(pools, 6, "pools")
		servers = cut(urgentFirst(servers), max(4, min(left/2, left-len(pairs)-len(pools)-4)), "servers")
	}
	return slices.Concat(gateways, servers, pairs, pools, decisions)
}

// urgentFirst is a section whose lines that need somebody come first, behind its two of heading: they
// are not to be cut off.
func urgentFirst(section []line) []line {
	rank := map[string]int{bad: 0, warn: 1, "": 2}
	slices.SortStableFunc(section[2:], func(a, b line) int { return cmp.Compare(rank[a.state], rank[b.state]) })
	return section
}

// cut is a section of no more lines than so many, of which the last one says what is missing.
func cut(section []line, most int, of string) []line {
	if len(section) <= most {
		return section
	}
	return append(section[:most-1:most-1], line{text: fmt.Sprintf("   and %d more %s", len(section)-most+1, of)})
}

// names are the servers' short names: P1, D2, B3.
func names(s *live.State) []string {
	seen := make(map[string]int)
	all := make([]string, len(s.Servers))
	for i := range s.Servers {
		letter := map[string]string{"prefill": "P", "decode": "D", "both": "B"}[s.Servers[i].Role]
		seen[letter]++
		all[i] = fmt.Sprint(letter, seen[letter])
	}
	return all
}

func serverLines(s *live.State) []line {
	lines := []line{{}, {text: fmt.Sprintf("%-4s %-28s %-12s %-9s %8s %9s %9s %5s  %s", "", "server", "state", "breaker", "requests", "run/wait", "queue", "KV", "adapters")}}
	short := names(s)
	for i := range s.Servers {
		lines = append(lines, serverLine(&s.Servers[i], short[i]))
	}
	if len(s.Servers) == 0 {
		lines = append(lines, line{"no server is known", bad})
	}
	return lines
}

func serverLine(s *live.Server, short string) line {
	state, urgent := "up", ""
	switch {
	case s.State == "down":
		state, urgent = "down", bad
	case s.State == "unresponsive":
		state, urgent = "answers late", warn
	case s.Draining:
		state, urgent = "draining", warn
	}
	requests, breaker, failure, queue := 0, "", "", "-"
	for _, leg := range []*live.Leg{s.Prefill, s.Decode} {
		if leg == nil {
			continue
		}
		requests += leg.Requests
		if breaker == "" || leg.Breaker != "closed" {
			breaker = leg.Breaker
			failure = cmp.Or(leg.Reason, failure)
		}
	}
	if s.Prefill != nil {
		queue = ms(s.Prefill.QueueMs)
	}
	if failure == s.Reason { // what keeps it down is what requests failed with
		failure = ""
	}
	switch {
	case breaker == "open":
		urgent = bad
	case breaker != "closed" && urgent == "":
		urgent = warn
	}
	var adapters []string
	for _, a := range s.Adapters {
		adapters = append(adapters, a.Name)
	}
	return line{fmt.Sprintf("%-4s %-28s %-12s %-9s %8d %9s %9s %5s  %s", short, clipped(s.ID, 28), state, breaker, requests,
		count(s.Running)+"/"+count(s.Waiting), queue, share(s.KVUsed), strings.Join(nonEmpty(strings.Join(adapters, ","), s.Reason, failure), "  ")), urgent}
}

// gatewayLines are the gateways where there are several, those first that need somebody.
func gatewayLines(s *live.State) []line {
	if len(s.Gateways) < 2 {
		return nil
	}
	lines := []line{{}, {text: fmt.Sprintf("%-28s %8s %9s %9s %6s %19s", "gateway", "waiting", "in flight", "answers/s", "failed", "TTFT p50 / p99")}}
	for i := range s.Gateways {
		g := &s.Gateways[i]
		if g.Silent != "" {
			lines = append(lines, line{fmt.Sprintf("%-28s no answer: %s", clipped(g.Replica, 28), g.Silent), bad})
			continue
		}
		p := &g.Lately
		l := line{text: fmt.Sprintf("%-28s %8d %9d %9.1f %6d %19s", clipped(g.Replica, 28), g.Waiting, g.InFlight, perSecond(p), p.Failed, some(p.First, p.TTFT50)+" / "+some(p.First, p.TTFT99))}
		if !g.Ready {
			l = line{l.text + "  not ready: " + g.Why, bad}
		}
		if g.Apart {
			l = line{l.text + "  " + apart, cmp.Or(l.state, warn)}
		}
		lines = append(lines, l)
	}
	return urgentFirst(lines)
}

// slowFrom is how many times slower than its class a pair is shown from.
const slowFrom = 1.5

// pairLines are the pairs that are slow or failed, slowest first: those of Links.Status come so.
func pairLines(s *live.State) []line {
	short := names(s)
	var lines []line
	for _, p := range s.Links.Pairs {
		if p.Slower < slowFrom && p.FailedAt == nil {
			continue
		}
		text := fmt.Sprintf("   %s to %s: taken for %.1fx slower than its class (%s), measured %.1fx over %d transfers",
			short[p.Prefill], short[p.Decode], p.Slower, cmp.Or(p.Blamed, "nobody is blamed"), p.Measured, p.Transfers)
		if p.FailedAt != nil {
			text += ", failed " + p.FailedAt.Format(time.TimeOnly)
		}
		urgent := warn
		if p.Slower >= 2*slowFrom {
			urgent = bad
		}
		lines = append(lines, line{text, urgent})
	}
	if lines == nil {
		return nil
	}
	return append([]line{{}, {text: "slow or failed pairs"}}, lines...)
}

func poolLines(s *live.State) []line {
	if len(s.Scaling) == 0 {
		return nil
	}
	lines := []line{{}, {text: "wanted servers"}}
	for _, p := range s.Scaling {
		l := line{text: fmt.Sprintf("   %s: wanted %s, ready %d, starting %d, %d requests wait: %s", strings.Join(nonEmpty(p.Model, p.Role, p.Variant), " "), number(p.Wanted), p.Ready, p.Pending, p.Waiting, p.Reason)}
		if p.Stale {
			l.text += " (old)"
		}
		if p.Stale || p.Wanted != nil && p.Ready < *p.Wanted {
			l.state = warn
		}
		lines = append(lines, l)
	}
	return lines
}

func decisionLines(s *live.State) []line {
	by := func(gateway string) string { // where there are several
		if len(s.Gateways) < 2 {
			return ""
		}
		return fmt.Sprintf(" %-24s", clipped(gateway, 24)) // a pod of a Deployment
	}
	lines := []line{{}, {text: fmt.Sprintf("%-8s %-11s %-14s%s %7s %7s %7s %9s | %-9s %9s   %s", "time", "outcome", "pair", by("gateway"), "prompt", "cached", "output", "waited", "first", "measured", "predicted: queue + prefill + transfer + step")}}
	short, ids := names(s), make(map[string]int)
	for i := range s.Servers {
		ids[s.Servers[i].ID] = i
	}
	name := func(id string) string {
		if i, known := ids[id]; known {
			return short[i]
		}
		return id
	}
	for i := range s.Decisions {
		d := &s.Decisions[i]
		pair := name(d.Chosen.Decode) + " alone"
		if d.Chosen.Prefill != "" {
			pair = name(d.Chosen.Prefill) + " to " + name(d.Chosen.Decode)
		}
		l := line{text: fmt.Sprintf("%-8s %-11s %-14s%s %7d %7s %7s %9s | %-9s %9s   %s + %s + %s + %s", d.At.Format(time.TimeOnly), d.Outcome, pair, by(d.Gateway), d.PromptTokens,
			number(d.Measured.CachedTokens), number(d.Measured.OutputTokens), ms(d.WaitedMs), ms(d.Chosen.First), optional(d.Measured.First),
			ms(d.Chosen.Queue), ms(d.Chosen.Compute), ms(d.Chosen.Transfer), ms(d.Chosen.Step))}
		if d.Outcome == "failed" || d.Outcome == "broken" {
			l.state = bad
		}
		lines = append(lines, l)
	}
	if len(s.Decisions) == 0 {
		lines = append(lines, line{text: "no request was served yet"})
	}
	return lines
}

// clipped is a text of no more characters than so many.
func clipped(text string, width int) string {
	if width <= 0 || utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + "…"
}

func nonEmpty(texts ...string) []string {
	return slices.DeleteFunc(texts, func(t string) bool { return t == "" })
}

// ms is a time that is given in milliseconds.
func ms(v float64) string {
	switch {
	case v >= 1000:
		return fmt.Sprintf("%.2f s", v/1000)
	case v >= 100:
		return fmt.Sprintf("%.0f ms", v)
	}
	return fmt.Sprintf("%.1f ms", v)
}

func optional(v *float64) string {
	if v == nil {
		return "-"
	}
	return ms(*v)
}

// some is a time of which there were n, "-" of none.
func some(n int, v float64) string {
	if n == 0 {
		return "-"
	}
	return ms(v)
}

func share(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", 100**v)
}

func count(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f", *v)
}

func number(v *int) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprint(*v)
}
