package policy

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// shipped holds the scenarios that come with the program.
//
//go:embed scenarios/*.yaml
var shipped embed.FS

// Scenario is a cluster, its network, what gateways can know of it, and how the
// trace is turned into load.
type Scenario struct {
	Name   string  `yaml:"name"`
	Title  string  `yaml:"title"`
	Like   string  `yaml:"like"`   // a shipped scenario that this one changes
	Trace  string  `yaml:"trace"`  // another trace than the one given; the scenario is skipped where it is absent
	Agents *Agents `yaml:"agents"` // a trace of agents' sessions instead
	// Workload is a generated trace instead.
	Workload *Workload `yaml:"workload"`

	Hardware      Hardware  `yaml:"hardware"`
	Prefill       int       `yaml:"prefill"`        // servers
	Decode        int       `yaml:"decode"`         // servers
	PrefillRacks  []int     `yaml:"prefill_racks"`  // servers in each rack
	DecodeRacks   []int     `yaml:"decode_racks"`   // servers in each rack
	Oversubscribe float64   `yaml:"oversubscribe"`  // a rack's uplink is its servers' NICs divided by this
	OwnUplink     float64   `yaml:"own_uplink"`     // bytes per second of each prefill server's own link to other racks; 0: those of a rack share its uplink
	Overlap       bool      `yaml:"overlap"`        // KV leaves layer by layer during prefill
	Slow          []int     `yaml:"slow"`           // prefill servers with SlowFactor
	SlowFactor    float64   `yaml:"slow_factor"`    // multiplies the time of their work
	Variants      []Variant `yaml:"variants"`       // other hardware among the prefill servers, which gateways know of
	LockstepRanks int       `yaml:"lockstep_ranks"` // decode servers that step together
	// FirstFromPrefill: prefill says the first token, and decode the others behind it, save of a
	// prompt that ends with a block, or an answer of one token. Policies of ours hold it: see firstHolder.
	FirstFromPrefill bool      `yaml:"first_from_prefill"`
	SlowNICs         []SlowNIC `yaml:"sick"`

	Speedup      float64 `yaml:"speedup"`       // of the trace's arrivals
	OutputFactor float64 `yaml:"output_factor"` // multiplies the trace's output lengths
	Outputs      *Draw   `yaml:"outputs"`       // lengths of answers instead of the trace's, drawn by each run
	Store        *Store  `yaml:"store"`         // of KV, shared by the prefill servers; nil: there is none
	Surge        *Surge  `yaml:"surge"`         // how the rate of arrivals changes over the run
	BurstEvery   float64 `yaml:"burst_every"`   // seconds of the trace between bursts of siblings; 0: none
	BurstSize    int     `yaml:"burst_size"`    // requests of a burst
	Noise        float64 `yaml:"noise"`         // sigma of the lognormal factor of each prefill's time

	RoundTrip    float64 `yaml:"round_trip"`    // seconds between a gateway and an engine, there and back
	Replicas     int     `yaml:"replicas"`      // of the gateway
	ReplicaDelay float64 `yaml:"replica_delay"` // seconds until a replica knows what another did
	DeciderHop   float64 `yaml:"decider_hop"`   // seconds between a replica and the one that decides for it, one way
	EventDelay   float64 `yaml:"event_delay"`   // most seconds until KV events arrive
	EventLoss    float64 `yaml:"event_loss"`    // part of the KV events that never do
	GaugeAge     float64 `yaml:"gauge_age"`     // seconds since the gauges were read
	LinksTold    float64 `yaml:"links_told"`    // gateways are told links so many times as fast as they are

	SLO SLO `yaml:"slo"`
}

// SlowNIC is a prefill server whose NIC has only a part of its speed for a while.
type SlowNIC struct {
	Prefill int     `yaml:"prefill"`
	Factor  float64 `yaml:"factor"`
	From    float64 `yaml:"from"` // seconds of the run
	Until   float64 `yaml:"until"`
}

// Variant is prefill servers of other hardware than the scenario's.
type Variant struct {
	Name      string  `yaml:"name"`
	Prefill   []int   `yaml:"prefill"`    // servers
	PerToken  float64 `yaml:"per_token"`  // multiplies the work of a token, and
	PerSquare float64 `yaml:"per_square"` // of each that it attends to
}

// SLO is what a request must meet to count as good.
type SLO struct {
	TTFT float64 `yaml:"ttft" json:"ttft_s"` // seconds
	ITL  float64 `yaml:"itl" json:"itl_s"`   // seconds, of the answer's gaps: every one, or their mean
}

// Shipped returns the names of the scenarios that come with the program.
func Shipped() []string { return namesIn(shipped, "scenarios") }

// FindScenarios reads the scenarios named, all shipped ones for "all". A name may be a
// pattern of shipped ones, as "agents*".
func FindScenarios(names []string) ([]*Scenario, error) {
	var found []*Scenario
	for _, name := range expand(names) {
		s, err := LoadScenario(name)
		if err != nil {
			return nil, err
		}
		found = append(found, s)
	}
	return found, nil
}

// expand puts the shipped scenarios in the place of patterns that match some.
func expand(names []string) (all []string) {
	for _, name := range names {
		if name == "all" {
			name = "*"
		}
		matching := slices.DeleteFunc(Shipped(), func(shipped string) bool {
			matches, err := path.Match(name, shipped)
			return !matches || err != nil
		})
		if len(matching) == 0 {
			matching = []string{name}
		}
		all = append(all, matching...)
	}
	return all
}

// LoadScenario reads a shipped scenario by its name, or a file by its path.
func LoadScenario(name string) (*Scenario, error) {
	var text []byte
	var err error
	if slices.Contains(Shipped(), name) {
		text, err = shipped.ReadFile(path.Join("scenarios", name+".yaml"))
	} else {
		text, err = os.ReadFile(name)
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("scenario %s: neither a file nor one of %s", name, strings.Join(Shipped(), ", "))
	}
	if err != nil {
		return nil, fmt.Errorf("scenario: %w", err)
	}
	s, err := ParseScenario(text)
	if err != nil {
		return nil, fmt.Errorf("scenario %s: %w", name, err)
	}
	return s, nil
}

// ParseScenario reads a scenario on top of the one it is like.
func ParseScenario(text []byte) (*Scenario, error) {
	var base struct {
		Like string `yaml:"like"`
	}
	if err := yaml.Unmarshal(text, &base); err != nil {
		return nil, err
	}
	s := &Scenario{
		Speedup: 1, OutputFactor: 1, LockstepRanks: 1, SlowFactor: 1, Oversubscribe: 1, LinksTold: 1,
		RoundTrip: 0.001, Replicas: 1, ReplicaDelay: 0.03, DeciderHop: 0.002, EventDelay: 0.05, GaugeAge: 0.1,
	}
	if base.Like != "" {
		like, err := LoadScenario(base.Like)
		if err != nil {
			return nil, err
		}
		s = like
	}
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(s); err != nil {
		return nil, err
	}
	return s, s.check()
}

func (s *Scenario) check() error {
	sum := func(racks []int) (n int) {
		for _, k := range racks {
			n += k
		}
		return n
	}
	switch {
	case s.Prefill < 1 || s.Decode < 1:
		return errors.New("prefill and decode must be positive")
	case len(s.PrefillRacks) != len(s.DecodeRacks) || sum(s.PrefillRacks) != s.Prefill || sum(s.DecodeRacks) != s.Decode:
		return errors.New("prefill_racks and decode_racks: as many racks in both, servers that add up")
	case s.LockstepRanks < 1 || s.Decode%s.LockstepRanks != 0:
		return errors.New("lockstep_ranks must divide decode")
	case s.OwnUplink < 0:
		return errors.New("own_uplink must not be negative")
	case s.Speedup <= 0 || s.OutputFactor <= 0 || s.Oversubscribe <= 0 || s.SlowFactor <= 0 || s.LinksTold <= 0 || s.Replicas < 1:
		return errors.New("speedup, output_factor, oversubscribe, slow_factor, links_told and replicas must be positive")
	case s.Noise < 0 || s.RoundTrip < 0 || s.ReplicaDelay < 0 || s.DeciderHop < 0 || s.EventDelay < 0 || s.EventLoss < 0 || s.EventLoss > 1 || s.GaugeAge < 0:
		return errors.New("noise, delays and ages must not be negative, event_loss within 0 and 1")
	case s.BurstEvery > 0 && s.BurstSize < 2:
		return errors.New("burst_size must be at least 2")
	}
	for _, p := range s.Slow {
		if p < 0 || p >= s.Prefill {
			return fmt.Errorf("slow: no prefill server %d", p)
		}
	}
	for _, v := range s.Variants {
		if len(v.Prefill) == 0 || v.PerToken <= 0 || v.PerSquare <= 0 || slices.ContainsFunc(v.Prefill, func(p int) bool { return p < 0 || p >= s.Prefill }) {
			return fmt.Errorf("variant %s: want prefill servers and positive factors", v.Name)
		}
	}
	for _, k := range s.SlowNICs {
		if k.Prefill < 0 || k.Prefill >= s.Prefill || k.Factor <= 0 || k.Until < k.From {
			return errors.New("sick: want a prefill server, a positive factor, from before until")
		}
	}
	if s.Store != nil {
		if err := s.Store.check(); err != nil {
			return err
		}
	}
	return errors.Join(s.checkLoad(), s.Hardware.check())
}

// checkLoad checks what requests are made of.
func (s *Scenario) checkLoad() error {
	if s.Agents != nil {
		if err := s.Agents.check(); err != nil {
			return err
		}
	}
	if s.Workload != nil {
		if err := s.Workload.check(); err != nil {
			return err
		}
	}
	if s.Outputs != nil {
		if err := s.Outputs.check(); err != nil {
			return fmt.Errorf("outputs: %w", err)
		}
	}
	if s.Surge != nil {
		return s.Surge.check()
	}
	return nil
}

// workload is what the scenario's trace is generated from; nil: it has none of its own.
func (s *Scenario) workload() *Workload {
	if s.Agents != nil {
		return s.Agents.workload()
	}
	return s.Workload
}

// withoutDelays is the scenario for a policy that knows of everything at once.
func (s *Scenario) withoutDelays() *Scenario {
	exact := *s
	exact.ReplicaDelay, exact.DeciderHop, exact.EventDelay, exact.EventLoss, exact.GaugeAge = 0, 0, 0, 0, 0
	return &exact
}

// trip is the time from a gateway to an engine, or back.
func (s *Scenario) trip() float64 { return s.RoundTrip / 2 }

// handOff is the time from the end of a prefill until decode's engine has the request, but for
// transfers: prefill's answer, the gateway's call, and what decode's engine takes.
func (s *Scenario) handOff() float64 { return s.RoundTrip + s.Hardware.HandOff }

func (s *Scenario) racks() int            { return len(s.PrefillRacks) }
func (s *Scenario) prefillRack(p int) int { return rackOf(s.PrefillRacks, p) }
func (s *Scenario) decodeRack(d int) int  { return rackOf(s.DecodeRacks, d) }

func rackOf(racks []int, server int) int {
	for r, n := range racks {
		if server < n {
			return r
		}
		server -= n
	}
	return len(racks) - 1
}

// uplink is the capacity of a rack's link to the others, each way: the NICs of an
// average rack over the oversubscription, the same for all racks.
func (s *Scenario) uplink() float64 {
	perRack := float64(s.Prefill+s.Decode) / float64(s.racks())
	return s.Hardware.NIC * perRack / s.Oversubscribe
}

// bandwidth is the most that a transfer from p to d can get, in bytes per second, as the
// gateway is told: what the labels give of the narrowest link between them.
func (s *Scenario) bandwidth(p, d int) float64 {
	if s.prefillRack(p) == s.decodeRack(d) {
		return s.Hardware.NIC * s.LinksTold
	}
	return s.across() * s.LinksTold
}

// across is the most that a transfer between two racks can get.
func (s *Scenario) across() float64 {
	if s.OwnUplink > 0 {
		return min(s.Hardware.NIC, s.OwnUplink)
	}
	return min(s.Hardware.NIC, s.uplink())
}

// variant is that of a prefill server; one without a name is the scenario's own hardware.
func (s *Scenario) variant(p int) Variant {
	for _, v := range s.Variants {
		if slices.Contains(v.Prefill, p) {
			return v
		}
	}
	return Variant{PerToken: 1, PerSquare: 1}
}

// prefillHardware is that of a prefill server.
func (s *Scenario) prefillHardware(p int) *Hardware {
	h, v := s.Hardware, s.variant(p)
	h.PrefillPerToken *= v.PerToken
	h.PrefillPerSquare *= v.PerSquare
	return &h
}

func (s *Scenario) prefillSpeed(p int) float64 {
	if slices.Contains(s.Slow, p) {
		return s.SlowFactor
	}
	return 1
}

// saysFirst reports whether prefill says the first token of a request.
func (s *Scenario) saysFirst(r *Request) bool {
	return s.firstFromPrefill() && r.Prompt%blockTokens != 0 && r.Output > 1
}

// firstFromPrefill reports whether engines may continue behind prefill's token: none is known to where KV
// leaves layer by layer.
func (s *Scenario) firstFromPrefill() bool { return s.FirstFromPrefill && !s.Overlap }
