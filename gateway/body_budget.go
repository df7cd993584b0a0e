package gateway

import "github.com/tandem-gateway/tandem/pd/bytebudget"

// freeBytes is the memory that any body may take without being counted: short requests
// come in however many long ones do.
const freeBytes = 64 << 10

// reservedBytes are what one body is counted as while it arrives, of what all may have. They begin with what is free. Those
// that have arrived are counted by the queue.
//
// The server reads bodies itself, and only those of clients that may come in: fasthttp would
// read the whole of any body first, into as much memory as the client announces.
//
// A body is counted as what it announces, before it comes. The budget leaves other tenants room, so that none can keep
// them out by bodies that it does not send.
type reservedBytes struct {
	budget *bytebudget.Budget
	tenant string // whose body it is; "" where there are no keys, or those of one tenant
	bytes  int
}

// grow counts a body as at least so long, unless all of them, or those of its tenant, would be too long.
func (r *reservedBytes) grow(bytes int) bool {
	if bytes <= r.bytes {
		return true
	}
	if !r.budget.Take(r.tenant, int64(r.bytes-freeBytes), int64(bytes-r.bytes)) {
		return false
	}
	r.bytes = bytes
	return true
}

// release gives back what is counted. Twice is as good as once.
func (r *reservedBytes) release() {
	if r.bytes > freeBytes {
		r.budget.GiveBack(r.tenant, int64(r.bytes-freeBytes))
		r.bytes = freeBytes
	}
}
