package policy

import "errors"

// Agents describes sessions of agents, from which a trace is generated: the same one for
// the same values. Each session belongs to one of a few products, and its prompts begin
// with the product's instructions and tools, which all its sessions share. A turn's prompt
// is that of the turn before, its answer, and what the tools returned. Turns come at
// their time, whether or not the turn before has ended, as in any trace.
type Agents struct {
	Seed         uint64  `yaml:"seed"`
	Products     int     `yaml:"products"`      // each session has one of them, all are as likely
	SharedTokens int     `yaml:"shared_tokens"` // of each product, at the head of its prompts
	Sessions     int     `yaml:"sessions"`
	Rate         float64 `yaml:"rate"`          // sessions that begin in a second, at random
	Turns        int     `yaml:"turns"`         // mean of a session; uniform from half of it to one and a half
	TurnSeconds  Bounds  `yaml:"turn_seconds"`  // from one turn to the next, uniform
	TurnTokens   Bounds  `yaml:"turn_tokens"`   // that a turn adds beside the answer before, log-uniform
	AnswerTokens Bounds  `yaml:"answer_tokens"` // uniform
}

// Bounds are the least and the most of what is drawn.
type Bounds struct {
	Least float64 `yaml:"least"`
	Most  float64 `yaml:"most"`
}

func (b Bounds) valid() bool           { return b.Least > 0 && b.Most >= b.Least }
func (b Bounds) draw(shape Shape) Draw { return Draw{Shape: shape, Least: b.Least, Most: b.Most} }

func (a *Agents) check() error {
	switch {
	case a.Products < 1 || a.SharedTokens < 1 || a.Sessions < 1 || a.Turns < 2 || a.Rate <= 0:
		return errors.New("agents: products, shared_tokens, sessions and rate must be positive, turns at least 2")
	case !a.TurnSeconds.valid() || !a.TurnTokens.valid() || !a.AnswerTokens.valid():
		return errors.New("agents: turn_seconds, turn_tokens and answer_tokens want least and most, positive and in this order")
	}
	return nil
}

// Trace is the first requests of the agents' sessions, at most limit (0: all).
func (a *Agents) Trace(name string, limit int) (*Trace, error) {
	if err := a.check(); err != nil {
		return nil, err
	}
	return a.workload().trace(name, a.Seed, limit), nil
}

// workload is the load of the agents' sessions. Its stamps are spread by each run, so that
// runs differ though the trace is one.
func (a *Agents) workload() *Workload {
	shared, turns := float64(a.SharedTokens), float64(a.Turns/2)
	return &Workload{
		Seed: a.Seed, Sessions: a.Sessions, Rate: a.Rate, spread: true,
		Kinds: []SessionKind{{
			Share: 1, Heads: a.Products, HeadTokens: Draw{Least: shared, Most: shared},
			Turns:        Draw{Least: turns, Most: turns + float64(a.Turns)},
			FirstTokens:  a.TurnTokens.draw(logUniform),
			TurnTokens:   a.TurnTokens.draw(logUniform),
			AnswerTokens: a.AnswerTokens.draw(uniform),
			TurnSeconds:  a.TurnSeconds.draw(uniform),
		}},
	}
}
