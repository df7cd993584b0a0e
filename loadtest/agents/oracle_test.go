package agents

import "testing"

// logged is a turn of a log whose prompt is full blocks, each told by a number.
func logged(c *conversation, number int, server string, blocks ...uint64) *turn {
	return &turn{request: &request{conversation: c, turn: number, tokens: blockTokens*len(blocks) + 1, blocks: blocks}, prefill: server}
}

// A cache forgets the prompt that was used least recently, its end before its beginning.
func TestLRU_ForgetsTheOldestPromptFromItsEnd(t *testing.T) {
	c := newLRUs(1, 4)[0]
	old, fresh := logged(nil, 0, "", 1, 2, 3), logged(nil, 0, "", 7, 8)
	c.serve(old.request)
	c.serve(fresh.request)
	if n := c.match(old.request); n != 2*blockTokens {
		t.Errorf("%d tokens of the old prompt are held", n)
	}
	if n := c.match(fresh.request); n != 2*blockTokens {
		t.Errorf("%d tokens of the new prompt are held", n)
	}
}

// One token of a prompt is always left to compute.
func TestLRU_AWholePromptIsNeverHeld(t *testing.T) {
	c := newLRUs(1, 4)[0]
	r := &request{tokens: 2 * blockTokens, blocks: []uint64{1, 2}}
	c.serve(r)
	if n := c.match(r); n != blockTokens {
		t.Errorf("%d of %d tokens are held", n, r.tokens)
	}
}

// With room for all one server is best, since what sessions share is computed once; with
// little room sessions that stay on a server of their own are better.
func TestOracle_IsTheBetterOfTwoRouters(t *testing.T) {
	a, b := &conversation{session: 1}, &conversation{session: 2}
	var log []*turn
	for range 3 {
		log = append(log, logged(a, 0, "", 1, 2, 3, 4), logged(b, 0, "", 1, 12, 13, 14))
	}
	for _, c := range []struct{ capacity, blocks int }{{10, 1 + 4*4}, {4, 4 * 4}} {
		if got := oracle(log, 2, c.capacity); got != c.blocks*blockTokens {
			t.Errorf("%d blocks a server: %d blocks are cached, want %d", c.capacity, got/blockTokens, c.blocks)
		}
	}
}
