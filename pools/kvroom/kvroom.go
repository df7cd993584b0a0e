// Package kvroom says for how much KV a decode server has room, beside what was sent to it.
//
// Requests whose prompts begin alike share the blocks of what they have in common: sixteen agents with one system prompt
// of 30,000 tokens take its KV once. Counted for each of them the server would be full with a few. What an engine says
// that is in use, beside what was sent to it, tells how much of a prompt is kept for it alone.
//
// It is pure: the clock is given, and it imports the standard library only, so that the policy simulator runs the same
// code as the gateway.
package kvroom

import (
	"sync"
	"time"
)

// Sent is what was sent to a server to be decoded there and has not ended, in tokens of KV if nothing were shared.
type Sent struct {
	Tokens    int // prompts, and the answers as far as they are taken to be on the average of their stay
	Prompts   int // of them, prompts
	Computing int // of those, what has yet to be computed, here or on prefill servers: it is not in use
}

// Said is what an engine says.
type Said struct {
	Used, Capacity   float64 // tokens of KV, in use and in all
	Running, Waiting float64 // requests
}

// Sharing is how much of the KV of the prompts in flight a server really keeps. Its zero value shares nothing. Safe for
// concurrent use.
type Sharing struct {
	mu    sync.Mutex
	share float64   // of a prompt's tokens, those that are kept for it alone, 0..1
	at    time.Time // when that was seen; zero: never
}

const (
	leastShare = 1. / 64 // what prompts are taken to keep for themselves at the least
	shareLife  = time.Minute
	// full is the share of KV in use from which an engine is short of it: requests wait there for room, whatever those
	// that run share.
	full = 0.9
	// mostAnswers is the most of what is in use that answers are taken to be: how long they will be is a forecast.
	mostAnswers = 0.5
	// growth is the share of a server's KV that no request gets: answers grow into it. An engine that has none left
	// preempts one, whose stream stands still until its KV has been computed again. A twentieth was best in the simulator
	// (loadtest/policy/EXPERIMENTS.md, Prompts that share KV).
	growth = 0.05
)

// Observe compares what an engine says that is in use with what it has computed of what was sent to it: what is neither
// prompt kept for a request alone nor answer is shared. Prompts of which it has computed a part are in use too, so that too
// little is rather taken to be shared than too much. Of a prompt whose answer comes whole it is not known when it has been
// computed: it counts, and a server that computes one gets no other anyway. An engine that is short of KV has room for
// nothing that is shared.
func (s *Sharing) Observe(said Said, sent Sent, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if said.Used >= full*said.Capacity && said.Waiting > 0 {
		s.share, s.at = 1, now
		return
	}
	computed := sent.Prompts - sent.Computing
	if computed <= 0 || said.Running <= 0 {
		return
	}
	run := said.Running / (said.Running + said.Waiting) // those that wait keep nothing
	prompts := run * float64(computed)
	answers := run * float64(sent.Tokens-sent.Prompts) * float64(computed) / float64(sent.Prompts)
	inPrompts := said.Used - min(answers, mostAnswers*said.Used)
	s.share, s.at = min(1, max(leastShare, inPrompts/prompts)), now
}

// believed is the share, 1 where it was seen long ago.
func (s *Sharing) believed(now time.Time) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at.IsZero() || now.Sub(s.at) > shareLife {
		return 1
	}
	return s.share
}

// HoldsUntil is until when what was seen counts, unless something else is seen; zero where nothing was.
func (s *Sharing) HoldsUntil() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at.IsZero() {
		return s.at
	}
	return s.at.Add(shareLife)
}

// InUse is how many tokens of KV what was sent takes on the server, but for what is still to come: fewer where prompts begin
// alike. What was seen of that holds for a minute.
func (s *Sharing) InUse(sent Sent, now time.Time) float64 {
	return sent.inUse(s.believed(now))
}

// inUse is InUse where prompts keep such a share for themselves.
func (s *Sent) inUse(share float64) float64 {
	return share*float64(max(0, s.Prompts-s.Computing)) + float64(s.Tokens-s.Prompts)
}

// Free is how many tokens more may be sent to a server with so many tokens of KV, of which others have some. It is below 0
// where more is there or on its way than has room. What is to come is taken to share half as much as what is there: it may
// be the one that has nothing in common with the others.
func (s *Sharing) Free(capacity, others float64, sent Sent, now time.Time) int {
	share := s.believed(now)
	return int((Given(capacity)-others-sent.inUse(share))/min(1, 2*share)) - min(sent.Prompts, sent.Computing)
}

// Given is how many of a server's tokens of KV requests are given: the others are for answers to grow into.
func Given(capacity float64) float64 { return (1 - growth) * capacity }
