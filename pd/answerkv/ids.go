package answerkv

import (
	"bytes"
	"slices"
	"strconv"
)

// IDs are the token ids of a prompt and its answer, as an engine reports them. Its zero value has
// none yet.
type IDs struct {
	ids     []uint32
	prompt  int  // of them
	unknown bool // some of them are not known
	tooMany bool // more came than are remembered of all answers
}

// Record takes what an event reports, as decimals between commas: the ids of the prompt, which the
// first has, and those of the answer since the last one. Both may be empty.
func (l *IDs) Record(prompt, answer []byte) {
	if len(prompt) > 0 && l.prompt == 0 {
		l.unknown = l.unknown || len(l.ids) > 0
		l.add(prompt)
		l.prompt = len(l.ids)
	}
	if len(answer) > 0 {
		l.unknown = l.unknown || l.prompt == 0
		l.add(answer)
	}
}

// Spoil says that more was answered than there are ids for.
func (l *IDs) Spoil() { l.unknown = true }

// add adds ids; where they are more than are remembered of all answers none are kept.
func (l *IDs) add(list []byte) {
	if l.tooMany {
		return
	}
	more := 1 + bytes.Count(list, []byte{','})
	if len(l.ids)+more > maxTokens {
		l.ids, l.unknown, l.tooMany = nil, true, true
		return
	}
	l.ids = slices.Grow(l.ids, more)
	for id := range bytes.SplitSeq(list, []byte{','}) {
		value, err := strconv.ParseUint(string(bytes.TrimSpace(id)), 10, 32)
		l.ids, l.unknown = append(l.ids, uint32(value)), l.unknown || err != nil
	}
}

// Report is what an engine says at the end of an answer whose KV it keeps.
type Report struct {
	IDs            *IDs   // nil: it reported none
	Prompt, Output int    // tokens, as it counts them
	Blocks, Tokens int    // that it keeps
	Block          int    // tokens of a block; 0: not known
	Handoff        []byte // names the KV
}

// Answer is what the engine keeps, nil where it is not all known: no token is compared of which the
// id was not reported.
func (r *Report) Answer() *Answer {
	if r.IDs == nil || r.IDs.unknown || r.Block == 0 || (r.Tokens+r.Block-1)/r.Block != r.Blocks {
		return nil
	}
	// The engine counts tokens whatever it reports of them: one that is missing would shift all that follow.
	if ids := r.IDs.ids; len(ids) > 0 && len(ids) == r.Prompt+r.Output {
		// The last token was said and not computed.
		return &Answer{IDs: ids[:min(len(ids)-1, r.Tokens)], Prompt: r.IDs.prompt, Block: r.Block, Handoff: r.Handoff}
	}
	return nil
}
