package agents

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine/bpe"
)

// workload is what all runs with as many servers are given, whatever their API, policy and
// caches: the same sessions with the same texts. What an agent's history says of earlier
// answers is made up here too, or else every run would have prompts of its own.
type workload struct {
	system   string
	tools    []tool
	sessions []*conversation
}

// tool is one that agents may call.
type tool struct{ name, description, property string }

// conversation is the turns of an agent. One that has a parent is a sub-agent's and begins
// with the parent's first steps.
type conversation struct {
	session  int
	parent   *conversation
	inherits int // steps of the parent
	steps    []step
	branches []*conversation // begin together when branchAt turns are done
	branchAt int
	start    time.Duration // before its first turn
}

// step is what a request has more than the one before: what was answered, and what the agent
// goes on with: a tool's result, or a question.
type step struct {
	number   int // within the run: makes ids
	thinking string
	says     string
	call     *call // nil: it called no tool
	asks     string
	answer   int           // tokens of the answer, at most
	think    time.Duration // before it is sent
}

type call struct{ tool, path, result string }

// writer makes texts. Equal seeds give equal ones.
type writer struct {
	chance *rand.Rand
	words  []string
	tok    *bpe.Tokenizer
	perKB  float64 // tokens of a thousand bytes
	steps  int
}

func newWriter(seed uint64) *writer {
	w := &writer{chance: rand.New(rand.NewPCG(seed, 20)), words: bpe.Words(), tok: bpe.Default()}
	w.perKB = float64(len(w.tok.Encode(w.bytes(50_000)))) / 50
	return w
}

// bytes are a text of so many bytes, or a word more: prose, code and lists.
func (w *writer) bytes(n int) string {
	var b strings.Builder
	b.Grow(n + 40)
	for line := 0; b.Len() < n; line++ {
		switch w.chance.IntN(8) {
		case 0:
			fmt.Fprintf(&b, "\t%s := %s.%s(%q, %d)\n", w.word(), w.word(), w.word(), w.word(), w.chance.IntN(1000))
		case 1:
			fmt.Fprintf(&b, "%s/%s_%d.go:%d: %s\n", w.word(), w.word(), w.chance.IntN(100), w.chance.IntN(900), w.word())
		default:
			for range 6 + w.chance.IntN(8) {
				b.WriteString(w.word())
				b.WriteByte(' ')
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

// tokens are a text of about so many tokens.
func (w *writer) tokens(n int) string { return w.bytes(int(float64(n) / w.perKB * 1000)) }

func (w *writer) word() string { return w.words[w.chance.IntN(len(w.words))] }

func (w *writer) uniform(r Range) int { return r.Least + w.chance.IntN(r.Most-r.Least+1) }

// logUniform draws so that halving and doubling are as likely: most are small.
func (w *writer) logUniform(r Range) int {
	return int(float64(r.Least) * math.Pow(float64(r.Most)/float64(r.Least), w.chance.Float64()))
}

// newWorkload makes the sessions of a cluster with so many prefill servers.
func newWorkload(l *Load, servers int) *workload {
	w := newWriter(l.Seed)
	all := &workload{system: w.tokens(l.SystemTokens)}
	for i := range l.Tools {
		all.tools = append(all.tools, tool{fmt.Sprintf("%s_%d", w.word(), i), w.tokens(80 + w.chance.IntN(80)), w.tokens(15)})
	}
	for i := range servers * l.Sessions {
		all.sessions = append(all.sessions, w.session(l, all, i))
	}
	return all
}

func (w *writer) session(l *Load, all *workload, number int) *conversation {
	c := &conversation{session: number, start: time.Duration(w.chance.Float64() * float64(l.ThinkMost))}
	for i := range l.Turns {
		c.steps = append(c.steps, w.step(l, all, i, (i+number)%l.ResultEvery == 0))
	}
	if c.branchAt = min(2, l.Turns-1); l.SubAgents > 0 {
		for range l.SubAgents {
			c.branches = append(c.branches, w.subAgent(l, all, c))
		}
	}
	return c
}

func (w *writer) subAgent(l *Load, all *workload, parent *conversation) *conversation {
	c := &conversation{session: parent.session, parent: parent, inherits: parent.branchAt}
	for i := range l.SubTurns {
		c.steps = append(c.steps, w.step(l, all, i, i > 0 && w.chance.IntN(l.ResultEvery) == 0))
	}
	c.steps[0].says, c.steps[0].think = w.tokens(20), 0
	return c
}

// step is one turn's. The first of a conversation is a question, later ones mostly bring the
// result of a tool.
func (w *writer) step(l *Load, all *workload, turn int, large bool) step {
	w.steps++
	s := step{
		number: w.steps, answer: w.uniform(l.AnswerTokens),
		think: l.ThinkLeast + time.Duration(w.chance.Float64()*float64(l.ThinkMost-l.ThinkLeast)),
	}
	if turn > 0 {
		s.thinking, s.says = w.tokens(30+w.chance.IntN(60)), w.tokens(10+w.chance.IntN(40))
	}
	if turn == 0 || len(all.tools) == 0 || !large && w.chance.IntN(4) == 0 {
		s.asks = w.tokens(w.logUniform(l.TurnTokens))
		return s
	}
	s.call = &call{tool: all.tools[w.chance.IntN(len(all.tools))].name, path: w.word() + "/" + w.word() + ".go"}
	if large {
		s.call.result = w.bytes(w.uniform(l.ResultBytes))
	} else {
		s.call.result = w.tokens(w.logUniform(l.TurnTokens))
	}
	return s
}

// all are the conversations of the sessions, each before its sub-agents'.
func (w *workload) all() (found []*conversation) {
	for _, c := range w.sessions {
		found = append(append(found, c), c.branches...)
	}
	return found
}

// upTo returns the steps of a turn's request.
func (c *conversation) upTo(turn int) []*step {
	var steps []*step
	if c.parent != nil {
		steps = c.parent.upTo(c.inherits - 1)
	}
	for i := range turn + 1 {
		steps = append(steps, &c.steps[i])
	}
	return steps
}
