package agents

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/process"
)

// Config is which runs are made.
type Config struct {
	From     process.Programs
	APIs     []string // names of APIs
	Servers  []int    // prefill servers of the clusters
	Caches   []string // ample, half
	Policies []string // names of policies
	Load     Load
	// Seeds is of how many seeds each run is made, from that of the load on: their turns are
	// counted together.
	Seeds int
	// Speed is how many times as fast as in life the engines compute and agents think.
	Speed   float64
	LogPath string // of what the gateway says; "" drops it
	// Turns receives a line for each turn, as CSV (turnlog.go); nil: none.
	Turns   io.Writer
	turnLog *csv.Writer
}

// Load describes the sessions of agents. Lengths are in tokens if they do not say otherwise.
type Load struct {
	Seed         uint64 `json:"seed"`
	Sessions     int    `json:"sessions_per_prefill_server"`
	SystemTokens int    `json:"system_tokens"` // of the system prompt that all share
	Tools        int    `json:"tools"`
	Turns        int    `json:"turns"` // of each session, without those of its sub-agents
	// What a turn adds: least and most, of which halving and doubling are as likely.
	TurnTokens Range `json:"turn_tokens"`
	// Every so many turns bring a tool's result of so many bytes, uniform.
	ResultEvery int   `json:"result_every"`
	ResultBytes Range `json:"result_bytes"`
	// So many sub-agents begin at once from each session after its second turn, and take so
	// many turns each; the session waits for them.
	SubAgents    int           `json:"sub_agents"`
	SubTurns     int           `json:"sub_agent_turns"`
	AnswerTokens Range         `json:"answer_tokens"`
	ThinkLeast   time.Duration `json:"think_least_ns"` // between an answer and the next turn
	ThinkMost    time.Duration `json:"think_most_ns"`
}

// Range is the least and the most of what is drawn.
type Range struct {
	Least int `json:"least"`
	Most  int `json:"most"`
}

// The caches of prefill servers.
const (
	Ample = "ample" // the working set of all sessions fits into each of them
	Half  = "half"  // half of the working set fits into all of them together
)

// Caches are all of them.
func Caches() []string { return []string{Ample, Half} }

// policy is a gateway's way to choose.
type policy struct {
	name  string
	flags []string // of serve
}

var policies = []policy{
	{name: "tandem"},
	{name: "least-load", flags: []string{"--policy", "least-load", "--binding", "arrival"}},
	{name: "round-robin", flags: []string{"--policy", "round-robin", "--binding", "arrival"}},
}

// Policies are the names of those that can be compared: the gateway as it is, and rivals.
func Policies() (names []string) {
	for i := range policies {
		names = append(names, policies[i].name)
	}
	return names
}

// Default is the comparison that the docs have.
func Default() Config {
	return Config{APIs: APIs(), Servers: []int{2, 4, 8}, Caches: Caches(), Policies: Policies(), Load: DefaultLoad(), Seeds: 1, Speed: 1}
}

// DefaultLoad is sessions of coding agents.
func DefaultLoad() Load {
	return Load{
		Seed: 1, Sessions: 3, SystemTokens: 20_000, Tools: 20, Turns: 5,
		TurnTokens: Range{100, 2000}, ResultEvery: 3, ResultBytes: Range{10_000, 50_000},
		SubAgents: 4, SubTurns: 2, AnswerTokens: Range{20, 60},
		ThinkLeast: time.Second, ThinkMost: 5 * time.Second,
	}
}

func (c *Config) validate() error {
	l := &c.Load
	ranges := []Range{l.TurnTokens, l.ResultBytes, l.AnswerTokens}
	switch {
	case c.From == (process.Programs{}):
		return errors.New("the programs are needed")
	case len(c.APIs) == 0 || len(c.Servers) == 0 || len(c.Caches) == 0 || len(c.Policies) == 0:
		return errors.New("an API, a number of servers, a cache and a policy are needed")
	case slices.Min(c.Servers) < 1 || l.Sessions < 1 || l.SystemTokens < 1 || l.Tools < 0 || l.Turns < 2 || l.ResultEvery < 1 || l.SubAgents < 0 || l.SubTurns < 1:
		return errors.New("servers, sessions, tokens and turns must be positive, turns at least 2")
	case c.Seeds < 1:
		return errors.New("a seed is needed")
	case !(c.Speed > 0) || l.ThinkLeast < 0 || l.ThinkMost < l.ThinkLeast:
		return errors.New("speed must be positive, and an agent thinks for some time")
	case slices.ContainsFunc(ranges, func(r Range) bool { return r.Least < 1 || r.Most < r.Least }):
		return errors.New("lengths want the least and the most, positive and in this order")
	}
	for _, check := range []struct{ given, known []string }{{c.APIs, APIs()}, {c.Caches, Caches()}, {c.Policies, Policies()}} {
		for _, name := range check.given {
			if !slices.Contains(check.known, name) {
				return fmt.Errorf("%q is none of %s", name, strings.Join(check.known, ", "))
			}
		}
	}
	return nil
}
