package chaos

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tandem-gateway/tandem/loadtest"
)

const s = time.Second

// Scenario is one thing that goes wrong under load, and what must hold then.
type Scenario struct {
	Name  string
	Title string // what goes wrong, in a sentence without its end
	Peer  string // what the same costs elsewhere; empty: unknown

	Fleet  Fleet
	Load   Load
	Events Events
	Checks Checks
}

// Fleet is what a scenario runs on. Zero values are those of standard.
type Fleet struct {
	Prefill, Decode, Gateways int
	Redis                     bool     // gateways share one
	KVEvents                  bool     // engines publish KV events
	Connector                 string   // how decode obtains the KV; empty: nixl
	Gateway                   []string // further flags of tandem serve
}

// Load is what clients ask. Zero values are those of standard.
type Load struct {
	Gateways     []string      // that clients ask; none: all
	RPS          float64       // over all of them
	For          time.Duration // arrivals
	Prompt       int           // tokens
	Output       int           // tokens
	SharedPrefix int           // tokens that all prompts begin with
}

// standard fills what a scenario leaves open: two prefill and two decode servers
// behind one gateway, twenty streams a second for eight seconds.
func (c Scenario) standard() Scenario {
	set := func(n *int, standard int) {
		if *n == 0 {
			*n = standard
		}
	}
	set(&c.Fleet.Prefill, 2)
	set(&c.Fleet.Decode, 2)
	set(&c.Fleet.Gateways, 1)
	set(&c.Load.Prompt, 256)
	set(&c.Load.Output, 32)
	if c.Load.RPS == 0 {
		c.Load.RPS = 20
	}
	if c.Load.For == 0 {
		c.Load.For = 8 * s
	}
	return c
}

// config is the load on one of the gateways.
func (l Load) config(url string, gateways int, seed uint64) loadtest.Config {
	cfg := loadtest.DefaultConfig()
	cfg.URL, cfg.Model, cfg.Seed = url, model, seed
	cfg.RPS, cfg.Duration = l.RPS/float64(gateways), l.For
	cfg.PromptTokens, cfg.OutputTokens = loadtest.FixedLength(l.Prompt), loadtest.FixedLength(l.Output)
	cfg.SharedPrefixTokens, cfg.IgnoreEOS = l.SharedPrefix, true
	cfg.WordsPerToken = wordsPerToken
	cfg.Timeout = time.Minute
	return cfg
}

// names of the actors.
func (f Fleet) names() (all []string) {
	for _, group := range []struct {
		name string
		n    int
	}{{"prefill", f.Prefill}, {"decode", f.Decode}, {"gateway", f.Gateways}} {
		for i := range group.n {
			all = append(all, fmt.Sprintf("%s-%d", group.name, i))
		}
	}
	if f.Redis {
		all = append(all, "redis")
	}
	return all
}

// validate reports what is wrong with a scenario, nil if nothing.
func (c Scenario) validate() error {
	var faults []error
	names := c.standard().Fleet.names()
	for _, e := range c.Events {
		for _, name := range e.targets() {
			if !slices.Contains(names, name) && !strings.HasPrefix(name, busiest) {
				faults = append(faults, fmt.Errorf("%s: there is no component %s", c.Name, name))
			}
		}
		if e.at > c.standard().Load.For {
			faults = append(faults, fmt.Errorf("%s: %s at %v, after the load", c.Name, e.label, e.at))
		}
	}
	for _, g := range c.Load.Gateways {
		if !slices.Contains(names, g) {
			faults = append(faults, fmt.Errorf("%s: clients ask %s, which is not there", c.Name, g))
		}
	}
	if len(c.Checks) == 0 || c.Name == "" || c.Title == "" {
		faults = append(faults, fmt.Errorf("%q: wants a name, a title and checks", c.Name))
	}
	return errors.Join(faults...)
}

// Find returns the scenarios of some names, all of them for "all".
func Find(names []string) ([]Scenario, error) {
	if slices.Contains(names, "all") {
		return Scenarios, nil
	}
	var found []Scenario
	for _, name := range names {
		i := slices.IndexFunc(Scenarios, func(c Scenario) bool { return c.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("scenario %q is none of %s", name, strings.Join(Names(), ", "))
		}
		found = append(found, Scenarios[i])
	}
	return found, nil
}

// Names returns those of all scenarios.
func Names() []string {
	names := make([]string, len(Scenarios))
	for i, c := range Scenarios {
		names[i] = c.Name
	}
	return names
}
