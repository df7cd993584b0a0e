package tokens

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/engine/bpe"
)

// template is a chat template in tests: messages to marked text.
type template func(messages []message, day int) string

func mark(role string) string {
	return map[string]string{"system": bpe.System, "user": bpe.User, "assistant": bpe.Assistant, "tool": bpe.Tool}[role]
}

// appends writes one message after the other, as Llama and ChatML templates do.
func appends(messages []message, _ int) string {
	var b strings.Builder
	b.WriteString(bpe.Begin)
	for _, m := range messages {
		b.WriteString(mark(m.Role) + "\n" + strings.TrimSpace(m.Content) + bpe.EndOfTurn)
	}
	return b.String() + bpe.Assistant + "\n"
}

// bare has no special tokens, so merges reach across messages.
func bare(messages []message, _ int) string {
	var b strings.Builder
	for _, m := range messages {
		b.WriteString(m.Role + ": " + m.Content + "\n")
	}
	return b.String() + "assistant:"
}

// systemLast moves the system prompt before the last user message, as Mistral's do.
func systemLast(messages []message, _ int) string {
	last := -1
	for i, m := range messages {
		if m.Role == "user" {
			last = i
		}
	}
	var b strings.Builder
	b.WriteString(bpe.Begin)
	for i, m := range messages {
		switch {
		case m.Role == "system":
		case i == last:
			b.WriteString(bpe.User + messages[0].Content + "\n\n" + m.Content + bpe.EndOfTurn)
		default:
			b.WriteString(mark(m.Role) + m.Content + bpe.EndOfTurn)
		}
	}
	return b.String()
}

// forgetsReasoning drops the reasoning of assistant messages before the last user
// message, as Qwen 3's does.
func forgetsReasoning(messages []message, _ int) string {
	last := -1
	for i, m := range messages {
		if m.Role == "user" {
			last = i
		}
	}
	var b strings.Builder
	b.WriteString(bpe.Begin)
	for i, m := range messages {
		content := m.Content
		if reasoning, answer, has := strings.Cut(content, "</think>"); has && m.Role == "assistant" {
			content = answer
			if i > last {
				content = reasoning + "</think>" + answer
			}
		}
		b.WriteString(mark(m.Role) + "\n" + content + bpe.EndOfTurn)
	}
	return b.String() + bpe.Assistant
}

// dated writes the day first, as gpt-oss does.
func dated(messages []message, day int) string {
	return fmt.Sprintf("%sToday is day %d.\n", bpe.Begin, day) + appends(messages, day)
}

// lastFirst puts the last message first. No real template does.
func lastFirst(messages []message, day int) string {
	n := len(messages) - 1
	return appends([]message{messages[n]}, day) + appends(messages[:n], day)
}

// backwards writes the messages in reverse.
func backwards(messages []message, day int) string {
	var all []message
	for i := len(messages) - 1; i >= 0; i-- {
		all = append(all, messages[i])
	}
	return appends(all, day)
}

// counts tells the model how many messages there are.
func counts(messages []message, day int) string {
	return fmt.Sprintf("%s%d messages\n", bpe.Begin, len(messages)) + appends(messages, day)
}

// traffic makes prompts as clients do: shared and dated system prompts, next turns,
// answers made again, earlier turns edited, tool loops, documents with different
// questions, and short messages that all clients send.
type traffic struct {
	rng       *rand.Rand
	systems   []string
	documents []string
	open      [][]message
}

func newTraffic(seed uint64) *traffic {
	w := &traffic{rng: rand.New(rand.NewPCG(seed, 7))}
	for range 3 {
		w.systems = append(w.systems, words(w.rng, 120))
		w.documents = append(w.documents, words(w.rng, 300))
	}
	return w
}

func (w *traffic) one(of []string) string { return of[w.rng.IntN(len(of))] }

func (w *traffic) say(role string) message {
	switch w.rng.IntN(8) {
	case 0:
		return message{role, w.one([]string{"Continue", "ok", "yes, please", "Sorry, I cannot do that.", "", "Ünïcödé → 日本語"})}
	case 1:
		return message{role, w.one(w.documents) + "\n\n" + words(w.rng, 1+w.rng.IntN(20))}
	case 2:
		if role == "assistant" {
			return message{role, "<think>" + words(w.rng, 30) + "</think>" + words(w.rng, 20)}
		}
	}
	return message{role, words(w.rng, 1+w.rng.IntN(60))}
}

// next is the next prompt.
func (w *traffic) next() []message {
	if len(w.open) == 0 || w.rng.IntN(4) == 0 {
		system := w.one(w.systems)
		switch w.rng.IntN(4) {
		case 0:
			system = fmt.Sprintf("The time is %d:%d. ", w.rng.IntN(24), w.rng.IntN(60)) + system
		case 1:
			system += " " + words(w.rng, 5)
		}
		w.open = append(w.open, []message{{"system", system}, w.say("user")})
		return w.open[len(w.open)-1]
	}
	i := w.rng.IntN(len(w.open))
	talk := append([]message{}, w.open[i]...)
	switch w.rng.IntN(10) {
	case 0: // the same again
	case 1: // an earlier turn edited
		talk = talk[:1+w.rng.IntN(len(talk)-1)]
		talk = append(talk, w.say("user"))
	case 2, 3: // a tool loop
		talk = append(talk, w.say("assistant"), w.say("tool"))
	default:
		talk = append(talk, w.say("assistant"), w.say("user"))
	}
	w.open[i] = talk
	if len(talk) > 14 {
		w.open = append(w.open[:i], w.open[i+1:]...)
	}
	return talk
}

// outcome counts what a memory claimed of some traffic, in tokens.
type outcome struct {
	truth, claimed, certain int
	wrong                   int // prompts with a false claim
}

func (o *outcome) add(c claim, truth []uint32) {
	o.truth += len(truth)
	o.claimed += len(c.ids)
	o.certain += c.certain
	if shared(c.ids, truth) < len(c.ids) {
		o.wrong++
	}
}

func encode(marked string) []uint32 {
	var ids []uint32
	for _, id := range bpe.Default().EncodeMarked(marked) {
		ids = append(ids, uint32(id))
	}
	return ids
}

// replay sends n prompts of traffic through a memory.
func replay(t testing.TB, m *memory, w *traffic, render template, n int) (o outcome) {
	for i := range n {
		talk := w.next()
		p := Prompt{API: Chat, Body: chatBody(t, talk, nil)}
		text, ok := p.read()
		if !ok {
			t.Fatalf("not read: %s", p.Body)
		}
		truth := encode(render(talk, i*3/n))
		o.add(m.recall(text), truth)
		m.learn(text, truth, ByPrefill)
		text.free()
	}
	return o
}

var seeds = flag.Int("seeds", 2, "runs of each template in TestMemory_ClaimsAreTrue")

func TestMemory_ClaimsAreTrue(t *testing.T) {
	for _, c := range []struct {
		name         string
		render       template
		mostWrong    int     // prompts of a run of 300 with a false claim
		leastClaimed float64 // of all tokens
	}{
		{"appends", appends, 0, .5},
		{"bare", bare, 0, .5},
		{"system last", systemLast, 0, .1},
		{"forgets reasoning", forgetsReasoning, 0, .5},
		{"last first", lastFirst, 0, 0},
		{"backwards", backwards, 0, 0},
		// Outside of what is assumed of templates: found out at once, not foreseen. The
		// day changes twice in a run.
		{"dated", dated, 6, .4},
		{"counts", counts, 3, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var o outcome
			for seed := range uint64(*seeds) {
				got := replay(t, newMemory(64<<20), newTraffic(seed), c.render, 300)
				o.truth += got.truth
				o.claimed += got.claimed
				o.certain += got.certain
				o.wrong += got.wrong
				if got.wrong > c.mostWrong {
					t.Errorf("seed %d: %d prompts with a false claim", seed, got.wrong)
				}
			}
			t.Logf("claimed %.1f %% of the tokens, %.1f %% as certain; %d false claims",
				100*float64(o.claimed)/float64(o.truth), 100*float64(o.certain)/float64(o.truth), o.wrong)
			if share := float64(o.claimed) / float64(o.truth); share < c.leastClaimed {
				t.Errorf("only %.3f of all tokens claimed", share)
			}
		})
	}
}
