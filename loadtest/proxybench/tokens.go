package proxybench

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
	"strconv"
	"sync"
)

// vocabulary is how many different tokens there are.
const vocabulary = 1 << 17

// chatTokens are the tokens of a chat: one for each four bytes of its messages, so that prompts that begin alike have
// tokens that do.
type chatTokens struct {
	text   []byte // of the messages
	tokens []int32
	names  []uint64 // of the whole blocks: as in vLLM each is named by its tokens and all before
	ids    []byte   // the tokens of those blocks as they are written, with a comma behind each
	ends   []int    // of each block in ids
}

// tokenizer makes the tokens of chats. What the engines take of the machine the proxies lack, so the beginning of a
// chat is made once: it remembers a chat for each of some beginnings.
type tokenizer struct {
	seed maphash.Seed

	mu    sync.Mutex
	chats map[uint64]*chatTokens // by the hash of a beginning
}

const (
	beginning = 256 // bytes by which a chat is found
	mostChats = 64
)

func newTokenizer() *tokenizer {
	return &tokenizer{seed: maphash.MakeSeed(), chats: map[uint64]*chatTokens{}}
}

// tokensOf returns the tokens of a chat. They are not changed any more.
func (t *tokenizer) tokensOf(body []byte) *chatTokens {
	at := valueOf(body, `"messages":[`, ']')
	text := body[at.from:at.to]
	key := maphash.Bytes(t.seed, text[:min(len(text), beginning)])
	t.mu.Lock()
	known := t.chats[key]
	t.mu.Unlock()
	blocks := known.commonBlocks(text)
	made := known.extended(text, blocks)
	if 2*blocks >= len(made.names) {
		made.text = nil
		return made
	}
	made.text = slices.Clone(text)
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.chats) >= mostChats {
		clear(t.chats)
	}
	t.chats[key] = made
	return made
}

// commonBlocks is how many blocks a text begins with that are known.
func (c *chatTokens) commonBlocks(text []byte) (blocks int) {
	if c == nil {
		return 0
	}
	const block, step = 4 * blockTokens, 64 // bytes, and blocks that are compared at once
	most := min(len(text), len(c.text)) / block
	same := func(from, to int) bool {
		return string(text[from*block:to*block]) == string(c.text[from*block:to*block])
	}
	for blocks+step <= most && same(blocks, blocks+step) {
		blocks += step
	}
	for blocks < most && same(blocks, blocks+1) {
		blocks++
	}
	return blocks
}

// extended are the tokens of a text of which so many blocks are known.
func (c *chatTokens) extended(text []byte, known int) *chatTokens {
	tokens, blocks := len(text)/4, len(text)/4/blockTokens
	n := &chatTokens{tokens: make([]int32, 0, tokens), names: make([]uint64, 0, blocks)}
	name := uint64(1)
	if known > 0 {
		n.tokens = append(n.tokens, c.tokens[:known*blockTokens]...)
		n.names = append(n.names, c.names[:known]...)
		n.ids, n.ends = c.ids[:c.ends[known-1]:c.ends[known-1]], c.ends[:known:known]
		name = n.names[known-1]
	}
	for b := text[len(n.tokens)*4:]; len(b) >= 4; b = b[4:] {
		n.tokens = append(n.tokens, int32(binary.LittleEndian.Uint32(b)*0x9e3779b1/(1<<32/vocabulary)))
	}
	for i := known; i < blocks; i++ {
		block := n.tokens[i*blockTokens : (i+1)*blockTokens]
		for _, token := range block { // FNV-1a, by tokens
			name = (name ^ uint64(token)) * 0x100000001b3
		}
		n.names = append(n.names, name)
	}
	if 2*known < blocks {
		n.write(known)
	}
	return n
}

// write writes the ids of the blocks from one on.
func (c *chatTokens) write(from int) {
	for i := from; i < len(c.names); i++ {
		for _, token := range c.tokens[i*blockTokens : (i+1)*blockTokens] {
			c.ids = append(strconv.AppendInt(c.ids, int64(token), 10), ',')
		}
		c.ends = append(c.ends, len(c.ids))
	}
}

// appendIDs appends "1,2,3".
func (c *chatTokens) appendIDs(b []byte) []byte {
	if len(c.tokens) == 0 {
		return b
	}
	b = append(slices.Grow(b, len(c.ids)+8*blockTokens), c.ids...)
	for _, token := range c.tokens[len(c.ends)*blockTokens:] {
		b = append(strconv.AppendInt(b, int64(token), 10), ',')
	}
	return b[:len(b)-1]
}
