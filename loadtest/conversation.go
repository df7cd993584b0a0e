package loadtest

import (
	"math/rand/v2"
	"sync"
	"time"
)

// A conversation belongs to the one request of it that is in flight, or to the
// queue of those that may go on. It ends after Config.Turns questions or at its
// first failure.
type conversation struct {
	key     uint64    // its questions' text follows from it
	history []message // shared prefix, questions and answers so far
	asked   int       // questions answered so far
	tokens  int       // of the history
	prompt  int       // of them, those of the last prompt that was answered
	ready   time.Time // when the next question may be asked
}

// conversations is the synthetic workload. An arrival continues the conversation
// that has been ready longest, or opens a new one when none is ready. So the
// arrivals stay an open loop of the given rate for any number of turns; a slow
// server meets more conversations at once, not fewer requests.
type conversations struct {
	prompt, output Length
	prefix         []message
	prefixTokens   int
	turns          int
	think          time.Duration
	seed           uint64

	mu     sync.Mutex // guards what follows
	rng    *rand.Rand // lengths
	opened uint64
	primed bool            // a prompt with the prefix was answered
	ready  []*conversation // in order of time ready, which is the order of arrival here: think is constant
}

func newConversations(cfg Config, wordsPerToken float64) *conversations {
	c := &conversations{
		prompt: cfg.PromptTokens,
		output: cfg.OutputTokens,
		turns:  cfg.Turns,
		think:  cfg.ThinkTime,
		seed:   cfg.Seed,
		rng:    newRand(cfg.Seed, lengthStream),

		prefixTokens: cfg.SharedPrefixTokens,
	}
	if cfg.SharedPrefixTokens > 0 {
		text := newPassage(c.key(0), cfg.SharedPrefixTokens).appendText(nil, wordsPerToken)
		c.prefix = []message{{Role: "system", Content: string(text)}}
	}
	return c
}

// key returns the key of one text of this run; 0 is the shared prefix, n the
// n-th conversation.
func (c *conversations) key(n uint64) uint64 { return mix(mix(c.seed) + n) }

func (c *conversations) next(now time.Time) turn {
	c.mu.Lock()
	defer c.mu.Unlock()
	talk := c.continueLocked(now)
	if talk == nil {
		c.opened++
		talk = &conversation{key: c.key(c.opened), history: c.prefix, tokens: c.prefixTokens}
		if c.primed {
			talk.prompt = c.prefixTokens
		}
	}
	question := newPassage(mix(talk.key+uint64(talk.asked)), c.prompt.draw(c.rng))
	return turn{
		talk:         talk,
		question:     question,
		outputTokens: c.output.draw(c.rng),
		promptTokens: talk.tokens + question.tokens,
		repeated:     talk.prompt,
	}
}

// continueLocked takes the longest ready conversation; nil if none is ready.
func (c *conversations) continueLocked(now time.Time) *conversation {
	if len(c.ready) == 0 || c.ready[0].ready.After(now) {
		return nil
	}
	talk := c.ready[0]
	c.ready[0] = nil
	c.ready = c.ready[1:]
	return talk
}

func (c *conversations) answered(t turn, asked []message, o *outcome, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.primed = true
	talk := t.talk
	talk.asked++
	if talk.asked >= c.turns {
		return
	}
	talk.history = append(asked, message{Role: "assistant", Content: o.text.String()})
	talk.tokens, talk.prompt = t.promptTokens+o.outputTokens, t.promptTokens
	talk.ready = now.Add(c.think)
	c.ready = append(c.ready, talk)
}

// The streams of chance of one run. Each has its own, so that another prompt
// length does not change the arrivals.
const (
	arrivalStream uint64 = iota + 1
	lengthStream
)

func newRand(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }
