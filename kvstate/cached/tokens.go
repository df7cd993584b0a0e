// Package cached says how much of a prompt a server holds: what kvstate finds, and what
// pd/cost and the simulators price. It imports the standard library only.
package cached

// Tokens is how many leading tokens of a prompt a server holds. Slower tiers include the
// faster ones: CPU is the longest prefix of which every block is on the GPU or in CPU
// memory. Pending is how many of the GPU's the server was sent lately and has not
// confirmed.
//
// It has four fields on purpose: compilers keep no larger struct in registers, and it is
// read for every server at every choice.
type Tokens struct {
	GPU, CPU, Disk int
	Pending        int
}

// Confirmed is what is on the GPU already, not only on its way there.
func (t Tokens) Confirmed() int { return t.GPU - t.Pending }
