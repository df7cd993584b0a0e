package agents

import "container/list"

// lru is one server's KV cache: blocks, the least recently used go first, of one prompt its
// tail before its head, as in vLLM.
type lru struct {
	capacity int
	blocks   map[uint64]*list.Element
	order    list.List // of block hashes, the newest in front
	computed int       // tokens computed so far
}

func newLRUs(servers, capacity int) []*lru {
	all := make([]*lru, servers)
	for i := range all {
		all[i] = &lru{capacity: capacity, blocks: make(map[uint64]*list.Element)}
	}
	return all
}

// match is how many tokens of a prompt need not be computed: full blocks, and one token is
// always left to compute.
func (c *lru) match(r *request) int {
	n := 0
	for n < len(r.blocks) && c.blocks[r.blocks[n]] != nil {
		n++
	}
	return blockTokens * min(n, (r.tokens-1)/blockTokens)
}

// serve computes a prompt and keeps it.
func (c *lru) serve(r *request) {
	c.computed += r.tokens - c.match(r)
	for i := len(r.blocks) - 1; i >= 0; i-- {
		if at := c.blocks[r.blocks[i]]; at != nil {
			c.order.MoveToFront(at)
			continue
		}
		c.blocks[r.blocks[i]] = c.order.PushFront(r.blocks[i])
	}
	for len(c.blocks) > c.capacity {
		oldest := c.order.Back()
		delete(c.blocks, c.order.Remove(oldest).(uint64))
	}
}

// oracle is the most cached tokens that two routers get out of a log of requests in the order
// in which they were sent, with caches of the same size as the servers'. Both know each
// prompt's exact tokens and what each cache holds, and have each prompt computed and kept the
// moment it is sent:
//
//   - longest match: where most of the prompt is held, of equal ones where fewest tokens were
//     computed so far;
//   - home: each session and its sub-agents stay on one server, the one where fewest tokens
//     had been computed when the session began.
//
// The first has the whole load on one server as long as that one's cache is large enough; a
// gateway that uses all of them computes what sessions share on each.
func oracle(log []*turn, servers, capacity int) (cached int) {
	return max(longestMatch(log, servers, capacity), home(log, servers, capacity))
}

func longestMatch(log []*turn, servers, capacity int) (cached int) {
	caches := newLRUs(servers, capacity)
	for _, t := range log {
		best, most := caches[0], -1
		for _, c := range caches {
			if n := c.match(t.request); n > most || n == most && c.computed < best.computed {
				best, most = c, n
			}
		}
		cached += most
		best.serve(t.request)
	}
	return cached
}

func home(log []*turn, servers, capacity int) (cached int) {
	caches := newLRUs(servers, capacity)
	homes := make(map[int]*lru)
	for _, t := range log {
		at := homes[t.request.conversation.session]
		if at == nil {
			at = leastComputed(caches)
			homes[t.request.conversation.session] = at
		}
		cached += at.match(t.request)
		at.serve(t.request)
	}
	return cached
}

func leastComputed(caches []*lru) *lru {
	least := caches[0]
	for _, c := range caches {
		if c.computed < least.computed {
			least = c
		}
	}
	return least
}
