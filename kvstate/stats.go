package kvstate

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// Drop is why an event, or one block of it, was left out.
type Drop uint8

const (
	DropUnknown   Drop = iota // of a kind or form that is not known
	DropMalformed             // its numbers do not fit together
	DropTier                  // in a medium that is not known
	DropGroup                 // of a KV cache group that does not count for prefixes
	DropParent                // behind a block that was never reported
	DropOffload               // offload of a block that was never reported
	DropRemoval               // removal of a block that is not held
	DropConflict              // its hash names other tokens already
	DropFull                  // more blocks than a source may have

	drops
)

func (d Drop) String() string {
	return [...]string{"unknown", "malformed", "tier", "group", "parent", "offload", "removal", "conflict", "full"}[d]
}

// Reset is why a source forgot everything.
type Reset uint8

const (
	ResetGap        Reset = iota // batches are lost for good
	ResetRestart                 // the engine restarted
	ResetDisconnect              // batches may be lost, which cannot be found out
	ResetUnreadable              // a batch could not be read
	ResetRebuild                 // to start again from what the engine can replay

	resets
)

func (r Reset) String() string {
	return [...]string{"gap", "restart", "disconnect", "unreadable", "rebuild"}[r]
}

// Counts is what a source has seen since it was opened.
type Counts struct {
	Batches, Events, Bytes uint64
	Stored, Removed        uint64 // blocks
	Cleared                uint64 // AllBlocksCleared
	Duplicates             uint64 // batches
	Misread                uint64 // messages of no known form
	Unreadable             uint64 // batches
	Gaps, Restarts         uint64
	Replays, ReplaysFailed uint64
	Replayed               uint64 // batches
	Resets                 [resets]uint64
	Dropped                [drops]uint64

	// EngineLag is how old the last batch was that came as it was sent, in seconds, by the clocks of
	// both sides; NaN: not known. LastBatch is when it came,
	// from the engine or through the replica that receives from it.
	EngineLag float64
	LastBatch time.Time
}

// DropReasons counts what was left out, by reason; reasons that never occurred are not there. misread and
// unreadable count whole messages.
func (c *Counts) DropReasons() map[string]uint64 {
	reasons := map[string]uint64{"misread": c.Misread, "unreadable": c.Unreadable}
	for why, n := range c.Dropped {
		reasons[Drop(why).String()] = n
	}
	maps.DeleteFunc(reasons, never)
	return reasons
}

// ResetReasons counts how often everything was forgotten, likewise.
func (c *Counts) ResetReasons() map[string]uint64 {
	reasons := make(map[string]uint64)
	for why, n := range c.Resets {
		reasons[Reset(why).String()] = n
	}
	maps.DeleteFunc(reasons, never)
	return reasons
}

func never(_ string, n uint64) bool { return n == 0 }

func sum(reasons map[string]uint64) (total uint64) {
	for _, n := range reasons {
		total += n
	}
	return total
}

// recordLag notes how old a batch is that comes as it was sent, by the engine's clock; what is replayed is old.
func (c *Counts) recordLag(seconds float64, now time.Time) {
	c.EngineLag = math.NaN()
	if lag := float64(now.UnixMicro())/1e6 - seconds; math.Abs(lag) < 24*3600 { // NaN is not
		c.EngineLag = max(0, lag)
	}
}

// SourceState is what is known of a source now.
type SourceState struct {
	SourceID
	Model string
	Epoch uint64
	// Seq is the number of the last batch, where SeqKnown.
	Seq      uint64
	SeqKnown bool
	// Complete says that the source has requested all that its engine can replay.
	Complete bool
	// Receiver is the replica that receives the events of an engine in connect mode, and its
	// address, as far as is known; "" where each replica receives from the engine itself.
	Receiver string
	Holders  []HolderState
	Counts   Counts
}

// HolderState is what a source holds of one KV cache group, in blocks.
type HolderState struct {
	Group       int
	BlockTokens int
	// Blocks by the tier that a prompt needs to be matched up to them, and those that
	// no prompt is matched through.
	GPU, CPU, Disk, Unreachable int
	Bytes                       int
}

// State returns what is known of the source.
func (s *Source) State() SourceState {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := SourceState{
		SourceID: s.spec.SourceID, Model: s.spec.Model, Epoch: s.epoch,
		Seq: s.seq.last.seq, SeqKnown: s.seq.last.known, Complete: s.seq.complete, Receiver: s.receiver, Counts: s.counts,
	}
	for _, h := range s.holders {
		st.Holders = append(st.Holders, HolderState{
			Group: h.group, BlockTokens: h.blockTokens,
			GPU: h.levels[GPU], CPU: h.levels[CPU], Disk: h.levels[Disk], Unreachable: h.levels[nowhere],
			Bytes: h.bytes(),
		})
	}
	return st
}

// heldBlocks is how many blocks the source holds.
func (s *Source) heldBlocks() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.blocks()
}

// Changes counts what would make a new snapshot differ.
func (s *Source) Changes() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.counts.Stored + s.counts.Removed + s.counts.Cleared + s.counts.Restarts
	for _, r := range s.counts.Resets {
		n += r
	}
	return n
}

// SetReceiver notes which replica receives what the engine publishes, and at which address.
func (s *Source) SetReceiver(receiver string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.receiver = receiver
}

// Sources returns the state of all sources, sorted by server and rank.
func (ix *Index) Sources() []SourceState {
	var all []SourceState
	for _, s := range ix.List() {
		all = append(all, s.State())
	}
	slices.SortFunc(all, func(a, b SourceState) int {
		return cmp.Or(cmp.Compare(a.Server, b.Server), cmp.Compare(a.Rank, b.Rank))
	})
	return all
}

// modelCounts is what the matches of a model found.
type modelCounts struct {
	matches atomic.Uint64
	tokens  atomic.Uint64 // of the prompts, as far as they were known
	best    [tiers]atomic.Uint64
}

func (c *modelCounts) recordMatch(h *Hits) {
	c.matches.Add(1)
	c.tokens.Add(uint64(h.tokens))
	best := h.best
	for t := range best {
		c.best[t].Add(uint64(best[t]))
	}
}

// ModelState is the size of a model's part of the index and what its matches found.
type ModelState struct {
	Model   string           `json:"model"`
	Servers int              `json:"servers"`
	Tiers   [tiers]TierState `json:"shelves"` // GPU, CPU, disk
	Guesses TierState        `json:"guesses"`
	// Stores outside the engines, by the name that servers give them.
	Stores map[string]TierState `json:"stores,omitempty"`
	// Matches and the tokens of their prompts, and the tokens that the best server of
	// each held, by tier (slower ones include faster ones).
	Matches uint64        `json:"matches"`
	Tokens  uint64        `json:"prompt_tokens"`
	Best    [tiers]uint64 `json:"best_match_tokens"`
}

// TierState is the size of one tier: blocks that are held, memory in bytes.
type TierState struct {
	Blocks int `json:"blocks"`
	Bytes  int `json:"bytes"`
}

// Models returns the state of all models, sorted by name.
func (ix *Index) Models() []ModelState {
	var all []ModelState
	for _, m := range *ix.models.Load() {
		st := ModelState{
			Model: m.name, Servers: len(m.view.Load().servers),
			Matches: m.counts.matches.Load(), Tokens: m.counts.tokens.Load(),
		}
		for t, s := range m.tiers {
			st.Tiers[t].Blocks, st.Tiers[t].Bytes = s.size()
			st.Best[t] = m.counts.best[t].Load()
		}
		st.Guesses.Blocks, st.Guesses.Bytes = m.guesses.index.size()
		st.Stores = m.storeSizes()
		all = append(all, st)
	}
	slices.SortFunc(all, func(a, b ModelState) int { return cmp.Compare(a.Model, b.Model) })
	return all
}
