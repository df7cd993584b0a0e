package tokens

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"sort"
	"sync"

	"github.com/cespare/xxhash/v2"
)

const (
	cellBytes = 16                   // text is compared in cells of so many bytes
	cutCells  = 64                   // within a message every so many cells can be looked up
	runBytes  = cutCells * cellBytes // of them
)

// text is a prompt as it is compared with other prompts: hashes only, no text.
//
// A prompt is a context (all fields that may change the template's output but are no
// messages: tools, chat_template_kwargs, the adapter, ...), and then its messages,
// system prompt first. Each message is a header (its role and the names of its fields)
// and its content, cut into cells of 16 bytes and an end cell. The hash of each cell
// covers all cells before it, so two prompts share a text prefix exactly as far as
// they share prints.
//
// Of a long content each run of 64 cells is hashed as a whole, and its cells where their
// prints are asked for: to compare two texts takes those of a few runs.
type text struct {
	root    uint64 // of the context
	family  uint64 // of the context without the tools' text: what rules are kept by
	sum     uint64 // of the whole text
	context uint64 // of the context with the system prompt, if the first message is one
	size    int    // bytes of the text, about

	prints []uint32  // of each cell, the upper half of its hash, but for those of runs: see print
	runs   []cellRun // in order of cells
	cuts   []cut     // in order of cells
	turns  []turn    // messages
	tails  []tail    // tails[i] is what comes after turns[i]

	// open texts are prompts of /v1/completions: no message ends them, and the last
	// cell is whole, so up to 15 bytes at the end are only in the sum.
	open bool
	// partial texts leave something out: everything from the first message with an
	// image or another medium on.
	partial bool

	hash    uint64 // of the cells so far
	scratch []byte // for one cell
	compact []byte // messages that are not hashed as they stand
}

// cut is a cell that can be looked up.
type cut struct {
	hash uint64
	cell int32 // cells up to here
}

// cellRun is 64 cells of a content.
type cellRun struct {
	first  int32  // cell
	before uint64 // hash of the cells before it
	bytes  []byte // of the content; nil: the prints are made
}

// turn is one message.
type turn struct {
	first int32  // its first cell
	head  uint32 // hash of the first bytes of its content
	kind  kind
	since tail // its kind and those of the messages before it, back to one of the user
}

// kind is what a message is to a template.
type kind uint8

const (
	system    kind = iota
	user           //
	assistant      // with nothing but content
	call           // of the assistant, with tool calls or reasoning
	tool           // result of a call
	other
)

var kinds = map[string]kind{
	"system": system, "developer": system, "user": user, "assistant": assistant,
	"tool": tool, "function": tool, "ipython": tool,
}

// tail is a set of kinds: of the messages that follow some place in a prompt. Templates
// that treat a message by what follows it do so by kind: Qwen 3 drops the reasoning
// before the last user message, Mistral puts tools before it.
type tail uint8

func (t tail) with(k kind) tail { return t | 1<<k }

// tails is a set of tails: bit t is there if the tail t is.
type tails uint64

func (t tails) has(one tail) bool   { return t>>one&1 != 0 }
func (t tails) with(one tail) tails { return t | 1<<one }

var texts = sync.Pool{New: func() any { return new(text) }}

// free gives a text back for reuse.
func (t *text) free() {
	clear(t.runs) // which hold the request's body
	texts.Put(t)
}

// reset makes t an empty text of a context.
func (t *text) reset(root, family uint64) {
	*t = text{
		root: root, family: family, context: root, hash: root,
		prints: t.prints[:0], runs: t.runs[:0], cuts: t.cuts[:0], turns: t.turns[:0], tails: t.tails[:0], scratch: t.scratch[:0], compact: t.compact[:0],
	}
}

// add appends a message. lead is where the text in its content begins. Nothing is
// printed of it once the text is partial.
func (t *text) add(k kind, header, content, lead []byte) {
	since := t.since(len(t.turns), k)
	t.turns = append(t.turns, turn{first: int32(len(t.prints)), head: headOf(lead), kind: k, since: since})
	if t.partial {
		return
	}
	t.size += len(header) + len(content)
	t.cell(append(binary.LittleEndian.AppendUint64(t.scratch[:0], t.hash), header...))
	rest := t.cells(content)
	if t.open {
		t.sum = xxhash.Sum64(append(binary.LittleEndian.AppendUint64(t.scratch[:0], t.hash), rest...))
		t.cut()
		return
	}
	t.cell(append(append(binary.LittleEndian.AppendUint64(t.scratch[:0], t.hash), rest...), 0xff, byte(len(rest))))
	t.cut()
	t.sum = t.hash
	if k == system && len(t.turns) == 1 {
		t.context = t.hash
	}
}

// since is what turn.since is for the i-th message, of a kind.
func (t *text) since(i int, k kind) tail {
	if i == 0 || k == user {
		return tail(0).with(k)
	}
	return t.turns[i-1].since.with(k)
}

// cells hashes the whole cells of content and returns what is left. The content is kept until the text is freed.
func (t *text) cells(content []byte) (rest []byte) {
	for ; len(content) >= runBytes; content = content[runBytes:] {
		first := len(t.prints)
		t.runs = append(t.runs, cellRun{int32(first), t.hash, content[:runBytes]})
		t.prints = slices.Grow(t.prints, cutCells)[:first+cutCells]
		t.hash = runHash(t.hash, content[:runBytes])
		t.cuts = append(t.cuts, cut{t.hash, int32(len(t.prints))})
	}
	for ; len(content) >= cellBytes; content = content[cellBytes:] {
		t.hash = cellHash(t.hash, content)
		t.prints = append(t.prints, uint32(t.hash>>32))
	}
	return content
}

// runHash is the hash of a run and of the cells before it, of which before is the hash.
func runHash(before uint64, run []byte) uint64 {
	for ; len(run) >= ChunkBytes; run = run[ChunkBytes:] {
		before = chunkHash(before, (*[ChunkBytes]byte)(run))
	}
	return before
}

// print is the print of a cell.
func (t *text) print(cell int) uint32 {
	i := sort.Search(len(t.runs), func(i int) bool { return int(t.runs[i].first) > cell }) - 1
	if i >= 0 && t.runs[i].bytes != nil && cell < int(t.runs[i].first)+cutCells {
		t.printRun(&t.runs[i])
	}
	return t.prints[cell]
}

// printRun makes the prints of a run.
func (t *text) printRun(r *cellRun) {
	h := r.before
	for i := range cutCells {
		h = cellHash(h, r.bytes[i*cellBytes:])
		t.prints[int(r.first)+i] = uint32(h >> 32)
	}
	r.bytes = nil
}

// printAll makes all prints.
func (t *text) printAll() {
	for i := range t.runs {
		if t.runs[i].bytes != nil {
			t.printRun(&t.runs[i])
		}
	}
}

// cellHash is the hash of a whole cell and of those before it, of which before is the hash: in one of the three
// words no two values have the same hash where the other two are the same. A prompt has thousands of cells, each
// of which waits for the one before it: of xxhash, whose rounds these are, it waits for one here in place of six.
func cellHash(before uint64, cell []byte) uint64 {
	const p1, p2, p3, p4 = 0x9e3779b185ebca87, 0xc2b2ae3d27d4eb4f, 0x165667b19e3779f9, 0x85ebca77c2b2ae63
	first, second := binary.LittleEndian.Uint64(cell), binary.LittleEndian.Uint64(cell[8:cellBytes])
	words := bits.RotateLeft64(first*p2, 31)*p1 ^ bits.RotateLeft64(second*p3, 29)*p4
	return bits.RotateLeft64(before^words, 27)*p1 + p4
}

// cell adds one cell of any length. The bytes begin with the hash before it.
func (t *text) cell(bytes []byte) {
	t.scratch = bytes[:0]
	t.hash = xxhash.Sum64(bytes)
	t.prints = append(t.prints, uint32(t.hash>>32))
}

// cut makes the last cell one that can be looked up.
func (t *text) cut() {
	if last := len(t.cuts) - 1; last < 0 || t.cuts[last].cell != int32(len(t.prints)) {
		t.cuts = append(t.cuts, cut{t.hash, int32(len(t.prints))})
	}
}

// opening is the hash of what comes before the first message of the assistant: all turns of a
// conversation, and those of agents that branch off it, have the same. It is 0 for the prompt of a
// completion.
func (t *text) opening() uint64 {
	if t.open {
		return 0
	}
	for i := range t.turns {
		if t.turns[i].isAnswer() {
			return t.before(i)
		}
	}
	return t.sum
}

// previous is the hash of what comes before the last messages of the assistant, that is of all the text
// of the turn before. It is 0 where there is none.
func (t *text) previous() uint64 {
	i := len(t.turns) - 1
	for i >= 0 && !t.turns[i].isAnswer() {
		i--
	}
	for i > 0 && t.turns[i-1].isAnswer() {
		i--
	}
	if t.open || i < 0 {
		return 0
	}
	return t.before(i)
}

// isAnswer reports whether the message is the assistant's.
func (t *turn) isAnswer() bool { return t.kind == assistant || t.kind == call }

// hasAnswer reports whether a message is the assistant's.
func (t *text) hasAnswer() bool {
	return slices.ContainsFunc(t.turns, func(m turn) bool { return m.isAnswer() })
}

// before is the hash of the text before a message, 0 where there is none or it is not compared.
func (t *text) before(i int) uint64 {
	at, found := slices.BinarySearchFunc(t.cuts, t.turns[i].first, func(c cut, cell int32) int { return int(c.cell - cell) })
	if !found {
		return 0
	}
	return t.cuts[at].hash
}

// setText notes what is known of a prompt by its text.
func (k *Tokens) setText(t *text) {
	k.context, k.root, k.Opening = t.context, t.root, t.opening()
	if k.Opening != 0 {
		k.Whole, k.Before = t.sum, t.previous()
	}
}

// finish fills in the tails.
func (t *text) finish() {
	t.tails = slices.Grow(t.tails[:0], len(t.turns))[:len(t.turns)]
	var after tail
	for i := len(t.turns) - 1; i >= 0; i-- {
		t.tails[i] = after
		after = after.with(t.turns[i].kind)
	}
}

// headOf is the hash of the first bytes of a content.
func headOf(content []byte) uint32 {
	return uint32(xxhash.Sum64(content[:min(len(content), cellBytes)]))
}

// place is a position in a text between two cells.
type place struct {
	cell  int32 // cells before it
	turn  int   // the message that the last of them belongs to
	kind  kind  // of that message
	since tail  // kinds of that message and those before it, back to one of the user
	tail  tail  // what comes after that message
}

// at is the place after so many cells, at least one.
func (t *text) at(cell int32) place {
	i := sort.Search(len(t.turns), func(i int) bool { return t.turns[i].first >= cell }) - 1
	return place{cell, i, t.turns[i].kind, t.turns[i].since, t.tails[i]}
}

// common is how many leading cells the text shares with another, of which these are the prints. They cover what is
// before them, so the first that differs can be found by halves.
func (t *text) common(prints []uint32) int32 {
	n := min(len(t.prints), len(prints))
	return int32(sort.Search(n, func(i int) bool { return t.print(i) != prints[i] }))
}

// clone is a copy with all prints.
func (t *text) clone() text {
	t.printAll()
	c := *t
	c.runs = nil
	c.prints, c.cuts = slices.Clone(t.prints), slices.Clone(t.cuts)
	c.turns, c.tails = slices.Clone(t.turns), slices.Clone(t.tails)
	c.scratch, c.compact = nil, nil
	return c
}
