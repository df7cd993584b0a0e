// Package bytebudget bounds the memory that bodies and answers of clients take, so that no tenant takes what the others need.
package bytebudget

import "sync"

// Budget is so many bytes for all. Several texts of one tenant may take no more of it than they leave free: half where
// no other tenant has any, less where others have some.
type Budget struct {
	most int64 // bytes

	mu        sync.Mutex       // guards what follows
	taken     int64            // bytes
	ofTenants map[string]int64 // bytes, of those that have some
}

// New returns a budget of so many bytes.
func New(most int64) *Budget { return &Budget{most: most, ofTenants: make(map[string]int64)} }

// Taken is how many bytes are taken now.
func (b *Budget) Taken() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.taken
}

// Take counts more bytes of a text, which has some, unless its tenant's texts would have too many, or all together
// would. The tenant "" has all that there is.
func (b *Budget) Take(tenant string, has, more int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := b.taken + more
	if taken > b.most {
		return false
	}
	if tenant != "" {
		before := b.ofTenants[tenant]
		own := before + more
		if before > has && own > b.most-taken {
			return false
		}
		b.ofTenants[tenant] = own
	}
	b.taken = taken
	return true
}

// GiveBack takes back what a text of the tenant was counted as.
func (b *Budget) GiveBack(tenant string, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken -= bytes
	if tenant == "" {
		return
	}
	if b.ofTenants[tenant] -= bytes; b.ofTenants[tenant] == 0 {
		delete(b.ofTenants, tenant)
	}
}
