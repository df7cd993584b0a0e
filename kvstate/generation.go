package kvstate

import "sync/atomic"

// generation is the clock of confirmations: it advances when a 64th of what the index
// may keep has been confirmed. Ages are distinguished for 1,024 generations; what is older
// looks young again, which costs it only its turn.
type generation struct {
	confirmed atomic.Int64
	every     int64
}

const (
	generations = 64
	ages        = 1 << ageBits
)

func (g *generation) now() uint32 { return uint32(g.confirmed.Load()/g.every) & (ages - 1) }

func (g *generation) confirm(blocks int) { g.confirmed.Add(int64(blocks)) }
