package gateway

import (
	"sync"
	"sync/atomic"
)

// bodyBudget bounds the memory of request bodies that are still arriving. Those that have
// arrived are counted by the queue.
//
// The server reads bodies itself, and only those of clients that may come in: fasthttp would
// read the whole of any body first, into as much memory as the client announces.
//
// A body is counted as what it announces, before it comes. So that no tenant can keep the others out by bodies that it
// does not send, several of one may take no more than they leave free: half where no other tenant has any.
type bodyBudget struct {
	most int64 // bytes
	now  atomic.Int64

	mu        sync.Mutex       // guards what follows
	ofTenants map[string]int64 // bytes, of those that have some
}

// freeBytes is the memory that any body may take without being counted: short requests
// come in however many long ones do.
const freeBytes = 64 << 10

// take counts more bytes of a body, which has some, unless its tenant's bodies would have too many, or all together
// would. The tenant "" has all that there is.
func (b *bodyBudget) take(tenant string, has, more int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now.Load() + more
	if now > b.most {
		return false
	}
	if tenant != "" {
		before := b.ofTenants[tenant]
		own := before + more
		if before > has && own > b.most-now {
			return false
		}
		if b.ofTenants == nil {
			b.ofTenants = make(map[string]int64)
		}
		b.ofTenants[tenant] = own
	}
	b.now.Store(now)
	return true
}

func (b *bodyBudget) giveBack(tenant string, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now.Add(-bytes)
	if tenant == "" {
		return
	}
	if b.ofTenants[tenant] -= bytes; b.ofTenants[tenant] == 0 {
		delete(b.ofTenants, tenant)
	}
}

// reservedBytes are what one body is counted as. They begin with what is free.
type reservedBytes struct {
	budget *bodyBudget
	tenant string // whose body it is; "" where there are no keys, or those of one tenant
	bytes  int
}

// grow counts a body as at least so long, unless all of them, or those of its tenant, would be too long.
func (r *reservedBytes) grow(bytes int) bool {
	if bytes <= r.bytes {
		return true
	}
	if !r.budget.take(r.tenant, int64(r.bytes-freeBytes), int64(bytes-r.bytes)) {
		return false
	}
	r.bytes = bytes
	return true
}

// release gives back what is counted. Twice is as good as once.
func (r *reservedBytes) release() {
	if r.bytes > freeBytes {
		r.budget.giveBack(r.tenant, int64(r.bytes-freeBytes))
		r.bytes = freeBytes
	}
}
