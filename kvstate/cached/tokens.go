// Package cached says how much of a prompt a server holds: what kvstate finds, and what
// pd/cost and the simulators price. It imports the standard library only.
package cached

// Tokens is how many leading tokens of a prompt a server holds. Slower tiers include the
// faster ones: CPU is the longest prefix of which every block is on the GPU or in CPU
// memory. Guessed counts, behind those on the GPU, blocks that the server was sent
// lately and has not confirmed.
type Tokens struct {
	GPU, CPU, Disk int
	Guessed        int
}

// Most is the larger of two, tier by tier.
func (t Tokens) Most(o Tokens) Tokens {
	return Tokens{max(t.GPU, o.GPU), max(t.CPU, o.CPU), max(t.Disk, o.Disk), max(t.Guessed, o.Guessed)}
}

// Least is the smaller of two, tier by tier.
func (t Tokens) Least(o Tokens) Tokens {
	return Tokens{min(t.GPU, o.GPU), min(t.CPU, o.CPU), min(t.Disk, o.Disk), min(t.Guessed, o.Guessed)}
}
