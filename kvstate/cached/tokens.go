// Package cached says how much of a prompt a server holds: what kvstate finds, and what
// pd/cost and the simulators price. It imports the standard library only.
package cached

// Tokens is how many leading tokens of a prompt a server holds. Slower tiers include the
// faster ones: CPU is the longest prefix of which every block is on the GPU or in CPU
// memory. Guessed counts, behind those on the GPU, blocks that the server was sent
// lately and has not confirmed; where guesses count as held, Pending is how many of the
// GPU's are no more than that.
type Tokens struct {
	GPU, CPU, Disk int
	Guessed        int
	Pending        int
}

// Confirmed is what is on the GPU already, not only on its way there.
func (t Tokens) Confirmed() int { return t.GPU - t.Pending }

// Most is the larger of two, tier by tier.
func (t Tokens) Most(o Tokens) Tokens {
	return Tokens{GPU: max(t.GPU, o.GPU), CPU: max(t.CPU, o.CPU), Disk: max(t.Disk, o.Disk), Guessed: max(t.Guessed, o.Guessed)}
}

// Least is the smaller of two, tier by tier.
func (t Tokens) Least(o Tokens) Tokens {
	return Tokens{GPU: min(t.GPU, o.GPU), CPU: min(t.CPU, o.CPU), Disk: min(t.Disk, o.Disk), Guessed: min(t.Guessed, o.Guessed)}
}
