package kvstate

import "slices"

// blockForm is what the blocks of a holder are: so many tokens each, named by an engine's hash that
// covers so many tokens behind the block too.
//
// Both engines do so for draft models that read the tokens behind a block (EAGLE, MTP): a prompt
// that parts from another right behind a block cannot use it. vLLM 0.33 reports those tokens
// (lookahead_token_ids in v1/core/block_pool.py; none where it has a KV connector), SGLang 0.5.23
// each token with the one behind it (mem_cache/events.py, "bigram" pages). The own hash of such a
// block covers what the engine's does: a chain begins behind the first tokens, which are in its
// root.
type blockForm struct {
	blockTokens int
	lookahead   int
}

// maxLookahead is the most tokens behind a block that a hash may cover: a delta has 4 bits for it.
const maxLookahead = 15

// root is the parent of first blocks of prompts that begin with tokens, of which there are as many
// as the form looks ahead.
func (f blockForm) root(seed *Seed, model, adapter string, tokens []uint32) Hash {
	root := seed.Root(model, f.blockTokens, adapter)
	if f.lookahead > 0 {
		root = seed.Block(root, tokens[:f.lookahead], uint64(f.lookahead))
	}
	return root
}

func (e *event) form() blockForm { return blockForm{e.blockTokens, len(e.lookahead)} }

// covered are the tokens that the event's hashes cover beside those of their parents.
func (e *event) covered() []uint32 {
	if len(e.lookahead) == 0 {
		return e.tokens
	}
	return slices.Concat(e.tokens, e.lookahead)[len(e.lookahead):]
}
