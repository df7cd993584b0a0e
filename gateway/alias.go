package gateway

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
)

// Alias is a name that clients ask for and no engine has: another name of a model, or
// several models that share its requests by weight.
type Alias struct {
	Name    string
	Targets []Target
}

// Target is a model behind an alias, an adapter or not.
type Target struct {
	Model  string
	Weight float64 // above 0; only the proportions matter
}

// ParseAlias reads "name=model", or "name=model=weight|model=weight...".
func ParseAlias(text string) (Alias, error) {
	name, targets, ok := strings.Cut(text, "=")
	if !ok || name == "" {
		return Alias{}, fmt.Errorf("model-alias %q: want name=model or name=model=weight|model=weight", text)
	}
	a := Alias{Name: name}
	for target := range strings.SplitSeq(targets, "|") {
		model, weight, weighted := strings.Cut(target, "=")
		t := Target{Model: model, Weight: 1}
		if weighted {
			var err error
			if t.Weight, err = strconv.ParseFloat(weight, 64); err != nil || !(t.Weight > 0) || math.IsInf(t.Weight, 0) {
				return Alias{}, fmt.Errorf("model-alias %q: weight %q: want a number above 0", text, weight)
			}
		}
		if model == "" || model == name {
			return Alias{}, fmt.Errorf("model-alias %q: want another model behind it", text)
		}
		a.Targets = append(a.Targets, t)
	}
	return a, nil
}

// servedTargets returns those targets of an alias that the fleet has, or can load; where it has
// none, those whose servers are started for a request.
func (s *Server) servedTargets(a Alias) (targets []Target) {
	for _, t := range a.Targets {
		if _, served := s.fleet.Model(t.Model); served {
			targets = append(targets, t)
		}
	}
	if len(targets) > 0 {
		return targets
	}
	return slices.DeleteFunc(slices.Clone(a.Targets), func(t Target) bool {
		_, comes := s.pd.ScaleFromZero.WillServe(t.Model)
		return !comes
	})
}

// pick chooses a target for a key: each by its weight over all keys, and the same for
// the same key. When weights or targets change, only as many keys move as must
// (weighted rendezvous: the greatest -weight/ln(hash) wins).
func pick(targets []Target, key uint64) (model string) {
	best := math.Inf(-1)
	for _, t := range targets {
		hash := xxhash.Sum64String(t.Model + "\x00" + strconv.FormatUint(key, 16))
		uniform := (float64(hash>>11) + 0.5) / (1 << 53) // in (0, 1)
		if score := -t.Weight / math.Log(uniform); score > best {
			best, model = score, t.Model
		}
	}
	return model
}

// sharers are the fields by which clients say that requests belong together. Those
// that do stay with one model, and with the KV that it has of them.
var sharers = []string{"prompt_cache_key", "user"}

// shareKey is what requests that belong together have in common; random where the
// client does not say.
func shareKey(body api.Body) uint64 {
	for _, field := range sharers {
		if text, ok := body.Get(field).String(); ok && text != "" {
			return xxhash.Sum64String(text)
		}
	}
	return rand.Uint64()
}

// alias returns the alias of a name, false if it is none.
func (s *Server) alias(name string) (Alias, bool) {
	for _, aliases := range [][]Alias{s.cfg.Aliases, s.currentRules().Aliases} {
		for _, a := range aliases {
			if a.Name == name {
				return a, true
			}
		}
	}
	return Alias{}, false
}

// resolveAlias makes the request one for a model behind the alias that it names, if it does, or
// behind the rule for all other models.
// It reports false if no server serves any of them, or will.
func (s *Server) resolveAlias(req *pd.Request) bool {
	a, is := s.alias(req.Model)
	if !is {
		a.Targets = s.currentRules().Fallback
		if len(a.Targets) == 0 {
			return true
		}
	}
	targets := s.servedTargets(a)
	if len(targets) == 0 {
		return false
	}
	nameModel(req, pick(targets, shareKey(req.Body)))
	return true
}

// modelOf describes a name that clients may ask for: an alias as the target with the
// shortest context, or a model; false if no server serves it, or will.
func (s *Server) modelOf(name string) (pools.Model, bool) {
	a, is := s.alias(name)
	if !is {
		return s.findModel(name)
	}
	var least pools.Model
	for _, t := range s.servedTargets(a) {
		if m, offered := s.findModel(t.Model); offered && (least.ID == "" || m.MaxModelLen < least.MaxModelLen) {
			least = m
		}
	}
	return pools.Model{ID: name, MaxModelLen: least.MaxModelLen, Created: least.Created}, least.ID != ""
}

// findModel describes a model that is served, or whose servers are started for a request: of
// that only the names are known.
func (s *Server) findModel(model string) (pools.Model, bool) {
	if m, served := s.fleet.Model(model); served {
		return m, true
	}
	base, comes := s.pd.ScaleFromZero.WillServe(model)
	if base == model {
		base = ""
	}
	return pools.Model{ID: model, Parent: base}, comes
}
