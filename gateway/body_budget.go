package gateway

import "sync/atomic"

// bodyBudget bounds the memory of request bodies that are still arriving. Those that have
// arrived are counted by the queue.
//
// The server reads bodies itself, and only those of clients that may come in: fasthttp would
// read the whole of any body first, into as much memory as the client announces.
type bodyBudget struct {
	most int64 // bytes
	now  atomic.Int64
}

// freeBytes is the memory that any body may take without being counted: short requests
// come in however many long ones do.
const freeBytes = 64 << 10

// reservedBytes are what one body is counted as. They begin with what is free.
type reservedBytes struct {
	budget *bodyBudget
	bytes  int
}

// grow counts a body as at least so long, unless all of them would be too long.
func (r *reservedBytes) grow(bytes int) bool {
	more := int64(max(0, bytes-r.bytes))
	if r.budget.now.Add(more) > r.budget.most && more > 0 {
		r.budget.now.Add(-more)
		return false
	}
	r.bytes = max(r.bytes, bytes)
	return true
}

// release gives back what is counted. Twice is as good as once.
func (r *reservedBytes) release() {
	r.budget.now.Add(int64(freeBytes - r.bytes))
	r.bytes = freeBytes
}
