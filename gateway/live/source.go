package live

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/decision"
	"github.com/tandem-gateway/tandem/pd/history"
	"github.com/tandem-gateway/tandem/pools"
)

// shownDecisions is how many of the last requests are shown.
const shownDecisions = 24

// Source is what the page shows things of. Its fields are set once.
type Source struct {
	Fleet    *pools.Fleet
	PD       *pd.Orchestrator
	Scaling  func() []Pool // what is wanted of each pool
	Version  string
	Started  time.Time
	Replica  string      // "": no other shares its work
	Draining func() bool // this gateway ends
	Apart    func() bool // nothing is shared, as Redis does not answer; nil: nothing is to be
	Ask      Ask         // nil: there are no other gateways
}

// Report is what one gateway knows, in a form that adds up with what others know: the answer of
// /ui/report, which gateways ask each other for.
type Report struct {
	At        time.Time       `json:"at"` // by its own clock
	Gateway   Gateway         `json:"gateway"`
	Servers   []Server        `json:"servers"`
	Links     Links           `json:"links"`
	Models    []ModelCounts   `json:"models"`
	History   *history.Counts `json:"history"` // of one model, or of all
	Scaling   []Pool          `json:"scaling"`
	Decisions []Decision      `json:"decisions"`
}

// ModelCounts is what was counted of a model in the last minute.
type ModelCounts struct {
	ID     string          `json:"id"`
	Counts *history.Counts `json:"counts"`
}

// Report is what this gateway knows, with the history of a model, "" for all.
func (s *Source) Report(model string, now time.Time) *Report {
	servers := s.servers(now)
	return &Report{
		At: now, Gateway: s.gateway(), Servers: servers, Links: s.links(servers, now), Models: s.models(now),
		History: s.PD.History.Counts(model, now), Scaling: s.Scaling(), Decisions: s.decisions(),
	}
}

func (s *Source) gateway() Gateway {
	g := Gateway{Version: s.Version, Replica: s.Replica, Since: s.Started}
	g.Waiting, g.InFlight = s.PD.Queue.Len()
	g.Ready, g.Why = s.PD.Ready()
	if s.Draining() {
		g.Ready, g.Why = false, "draining"
	}
	g.Apart = s.Apart != nil && s.Apart()
	return g
}

func (s *Source) servers(now time.Time) []Server {
	out := []Server{}
	for _, server := range s.Fleet.Servers() {
		out = append(out, serverOf(server, now))
	}
	place := map[string]int{pools.Prefill.String(): 0, pools.Both.String(): 1, pools.Decode.String(): 2}
	slices.SortFunc(out, func(a, b Server) int {
		return cmp.Or(cmp.Compare(place[a.Role], place[b.Role]), cmp.Compare(a.ID, b.ID))
	})
	return out
}

func serverOf(s *pools.Server, now time.Time) Server {
	h, load := s.Health(), s.FreshLoad(now)
	out := Server{
		ID: s.ID(), Role: s.Role.String(), State: s.State().String(), Reason: h.Reason, Draining: s.Drains(),
		Host: s.Host, Rack: s.Rack, Zone: s.Zone, Connector: s.Connector(), Models: []string{},
		KVUsed: known(load.KVUsed.Value, load.KVUsed.Known), KVTokens: known(load.KVTokens.Value, load.KVTokens.Known),
		Running: known(load.Running.Value, load.Running.Known), Waiting: known(load.Waiting.Value, load.Waiting.Known),
	}
	for _, m := range h.Models {
		if m.Parent == "" {
			out.Models = append(out.Models, m.ID)
			continue
		}
		out.Adapters = append(out.Adapters, Adapter{Name: m.ID, Running: slices.Contains(load.Adapters.Running, m.ID)})
	}
	leg := func(role pools.Role) *Leg {
		if !s.Role.Serves(role) {
			return nil
		}
		all := s.InFlight(role, now)
		return &Leg{
			Breaker: string(s.Breaker(role, now)), Reason: s.BreakerReason(role), Requests: all.Requests, Own: s.OwnInFlight(role, now).Requests,
			Tokens: all.Tokens, QueueMs: ms(all.Queue),
		}
	}
	out.Prefill, out.Decode = leg(pools.Prefill), leg(pools.Decode)
	return out
}

// links are those between servers that are there.
func (s *Source) links(servers []Server, now time.Time) Links {
	place := make(map[string]int, len(servers))
	for i := range servers {
		place[servers[i].ID] = i
	}
	classes, pairs := s.PD.Binder.Links.Status(now)
	out := Links{Classes: []LinkClass{}, Pairs: []LinkPair{}}
	for _, c := range classes {
		out.Classes = append(out.Classes, LinkClass{c.Distance.String(), ms(c.Latency), c.BytesPerSecond / 1e9})
	}
	for _, p := range pairs {
		from, known := place[p.Prefill]
		to, both := place[p.Decode]
		if !known || !both {
			continue
		}
		pair := LinkPair{from, to, Link{Transfers: p.Transfers, Moving: p.Moving, Measured: rounded(p.Measured), Slower: rounded(p.Slower), Blamed: p.By}}
		if p.Transfers > 0 {
			pair.Distance = p.Distance.String()
		}
		if !p.FailedAt.IsZero() {
			pair.FailedAt = &p.FailedAt
		}
		out.Pairs = append(out.Pairs, pair)
	}
	return out
}

// models are those that were asked for within the history.
func (s *Source) models(now time.Time) (counts []ModelCounts) {
	for _, name := range s.PD.History.Models() {
		counts = append(counts, ModelCounts{name, s.PD.History.Counts(name, now).Lately()})
	}
	return counts
}

func pointOf(p history.Point) Point {
	out := Point{
		Start: p.Start.Unix(), First: p.First, Answers: p.Answers, Failed: p.Failed,
		Parts:  Parts{ms(p.Parts.Wait), ms(p.Parts.Retry), ms(p.Parts.Prefill), ms(p.Parts.Transfer), ms(p.Parts.Together), ms(p.Parts.Aggregated)},
		TTFT50: ms(p.TTFT50), TTFT99: ms(p.TTFT99), Gaps: p.Gaps, ITL50: ms(p.ITL50), ITL99: ms(p.ITL99), Output: p.Output, Prompt: p.Prompt,
	}
	if p.ReportedOf > 0 {
		cached, predicted := rounded(float64(p.Cached)/float64(p.ReportedOf)), rounded(float64(p.PredictedOfThese)/float64(p.ReportedOf))
		out.Cached, out.Predicted = &cached, &predicted
	}
	return out
}

func (s *Source) decisions() []Decision {
	out := []Decision{}
	for _, r := range s.PD.Decisions.Newest(shownDecisions) {
		if len(r.Choices) == 0 {
			continue // it failed before anything was chosen
		}
		d := decisionOf(&r)
		if _, served := s.Fleet.Model(r.Model); !served {
			d.Model = "" // what a client made up
		}
		out = append(out, d)
	}
	return out
}

func decisionOf(r *decision.Record) Decision {
	c := &r.Choices[len(r.Choices)-1]
	m := &c.Measured
	d := Decision{
		At: r.At, Model: r.Model, API: r.API, Outcome: outcomeOf(r), Attempts: len(r.Choices),
		PromptTokens: c.Demand.PromptTokens, OutputTokens: c.Demand.OutputTokens, WaitedMs: ms(c.Demand.Waited), Alone: c.Reason,
		Chosen: c.Chosen.Explained(),
		Measured: Measured{
			Prefill: span(m.Prefill), Transfer: span(m.Transfer), First: span(m.FirstToken), Whole: span(m.Whole),
			PromptTokens: counted(m.Usage.Prompt), CachedTokens: counted(m.Usage.Cached), OutputTokens: counted(m.Usage.Output),
		},
	}
	d.Chosen.Chosen = true
	if generated(r.RequestID) {
		d.ID = r.RequestID
	}
	return d
}

// outcomeOf is how a request ended, in a word: the errors of engines may quote what clients wrote.
func outcomeOf(r *decision.Record) string {
	switch last := r.Choices[len(r.Choices)-1].Outcome; {
	case r.Outcome == decision.ClientLeft:
		return decision.ClientLeft
	case r.Outcome == decision.Picked && last == "":
		return decision.Picked
	case r.Outcome != decision.Served && r.Outcome != decision.Picked:
		return "failed"
	case last != "":
		return "broken"
	}
	return decision.Served
}

// generatedID is a UUID, with or without a short word before it, or a long number: what programs make.
var generatedID = regexp.MustCompile(`^([a-z]{1,12}-)?([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{16,64})$`)

// generated reports whether a request's ID tells nothing of the client that sent it.
func generated(id string) bool { return generatedID.MatchString(strings.ToLower(id)) }

func known(v float64, is bool) *float64 {
	if !is {
		return nil
	}
	return &v
}

func span(d time.Duration) *float64 { return known(ms(d), d > 0) }

func counted(c api.Count) *int {
	if !c.Known {
		return nil
	}
	return &c.Tokens
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// rounded is a ratio to three digits behind the point.
func rounded(v float64) float64 { return float64(int64(v*1000+0.5)) / 1000 }
