package pools

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
)

// Difference is one thing in which a prefill and a decode server differ that would have to
// be the same for decode to use prefill's KV.
type Difference struct{ Of, Prefill, Decode string }

// String is the difference as people read it: "block_tokens: 32 (prefill), 16 (decode)".
func (d Difference) String() string {
	named := func(value string) string { return cmp.Or(value, "not known") }
	if d.Prefill == d.Decode {
		return d.Of + ": " + named(d.Prefill) + " makes no pairs"
	}
	return fmt.Sprintf("%s: %s (prefill), %s (decode)", d.Of, named(d.Prefill), named(d.Decode))
}

// aggregated is the connector of servers that hand no KV over.
const aggregated = "aggregated"

// Differences returns what keeps two servers from making a pair, nothing if they make one:
// they do where their compatibility keys are the same and their connector hands KV over.
func Differences(prefill, decode *Server) []Difference {
	return differences(prefill.traits(), decode.traits())
}

// traits are what a server's compatibility key is made of.
type traits struct {
	connector, weights, layout string
	reported                   Identity
}

func (s *Server) traits() traits {
	return traits{s.Connector(), s.Weights, s.Layout, s.Identity()}
}

func differences(p, d traits) (all []Difference) {
	compare := func(of, prefill, decode string) {
		if prefill != decode {
			all = append(all, Difference{of, prefill, decode})
		}
	}
	if p.connector == aggregated && d.connector == aggregated {
		all = append(all, Difference{"connector", aggregated, aggregated})
	}
	compare("connector", p.connector, d.connector)
	compare("weights", p.weights, d.weights)
	if compare("layout", p.layout, d.layout); p.layout+d.layout != "" {
		return all // what is configured counts before what engines report
	}
	compare("version", p.reported.Version, d.reported.Version)
	compare("block_tokens", p.reported.BlockTokens, d.reported.BlockTokens)
	compare("kv_type", p.reported.KVType, d.reported.KVType)
	return all
}

// Pairing is what the servers of one base model that are up can do together.
type Pairing struct {
	// Pairs is how many prefill and decode servers could run a request together.
	Pairs int
	// Prefill and Decode are two servers that come closest to a pair where there is none,
	// and Differ is what keeps them apart. Empty where a role has no server, and where all
	// servers serve requests whole on purpose.
	Prefill, Decode string
	Differ          []Difference
}

// Missing reports whether servers are there for pairs and make none.
func (p *Pairing) Missing() bool { return len(p.Differ) > 0 }

// Reason is what keeps the servers from making pairs, "" if nothing.
func (p *Pairing) Reason() string {
	parts := make([]string, len(p.Differ))
	for i, d := range p.Differ {
		parts[i] = d.String()
	}
	return strings.Join(parts, "; ")
}

// Pairings returns what the servers of each base model that are up and take requests can
// do together.
func Pairings(servers []*Server) map[string]Pairing {
	usable := make([]*Server, 0, len(servers))
	for _, s := range servers {
		if s.Health().Up && !s.Drains() {
			usable = append(usable, s)
		}
	}
	pairings := make(map[string]Pairing)
	for model, pool := range listing(usable) {
		var counts keyCounts
		for _, s := range pool {
			counts.add(s)
		}
		pairings[model] = counts.pairing()
	}
	return pairings
}

// keyCounts counts the servers of a model by compatibility key: there are few keys, and many
// servers.
type keyCounts struct{ of []keyCount }

type keyCount struct {
	key                   uint64
	first                 [2]*Server // of each role
	prefill, decode, both int
	handsOver             bool
}

func (c *keyCounts) add(s *Server) {
	key := s.CompatibilityKey()
	at := 0
	for at < len(c.of) && c.of[at].key != key {
		at++
	}
	if at == len(c.of) {
		c.of = append(c.of, keyCount{key: key, handsOver: s.Connector() != aggregated})
	}
	count := &c.of[at]
	for i, leg := range []Role{Prefill, Decode} {
		// One that serves whole requests on purpose is no half of a missing pair.
		if s.Role.Serves(leg) && count.first[i] == nil && (count.handsOver || s.Role != Both) {
			count.first[i] = s
		}
	}
	switch s.Role {
	case Prefill:
		count.prefill++
	case Decode:
		count.decode++
	case Both:
		count.prefill, count.decode, count.both = count.prefill+1, count.decode+1, count.both+1
	}
}

func (c *keyCounts) pairing() (p Pairing) {
	for _, of := range c.of {
		if of.handsOver {
			p.Pairs += of.prefill*of.decode - of.both // a server is no pair with itself
		}
	}
	if p.Pairs > 0 {
		return p
	}
	for _, from := range c.of {
		for _, to := range c.of {
			prefill, decode := from.first[0], to.first[1]
			if prefill == nil || decode == nil || prefill == decode {
				continue
			}
			if differ := Differences(prefill, decode); p.Differ == nil || len(differ) < len(p.Differ) {
				p.Prefill, p.Decode, p.Differ = prefill.ID(), decode.ID(), differ
			}
		}
	}
	return p
}

// WatchPairs logs when the servers of a model come to make no pair, or another reason for
// it, and when they make pairs again, until the context ends.
func (f *Fleet) WatchPairs(ctx context.Context) {
	watch := pairWatch{log: f.log, seen: make(map[string]string), logged: make(map[string]string)}
	for Pause(ctx, f.cfg.ProbeInterval) {
		watch.look(Pairings(f.Servers()))
	}
}

// pairWatch logs a reason once, and only when two looks in a row have found it: while
// servers come up one after the other the first of them may not fit.
type pairWatch struct {
	log          *slog.Logger
	seen, logged map[string]string // by model, the reason of the last look, and as it was logged
}

func (w *pairWatch) look(pairings map[string]Pairing) {
	for model := range w.seen {
		if _, there := pairings[model]; !there {
			delete(w.seen, model)
			delete(w.logged, model)
		}
	}
	for model, p := range pairings {
		reason := p.Reason()
		steady := w.seen[model] == reason
		w.seen[model] = reason
		switch {
		case !steady || w.logged[model] == reason:
			continue
		case reason == "":
			w.log.Info("prefill and decode servers make pairs again", "model", model, "pairs", p.Pairs)
		default:
			w.log.Warn("no prefill and decode server make a pair: requests run on decode servers alone, or are refused", "model", model,
				"prefill", p.Prefill, "decode", p.Decode, "differ", reason)
		}
		w.logged[model] = reason
	}
}
