package policy

import "github.com/tandem-gateway/tandem/kvstate/ghost"

// returning is what of a request's prompt comes back, as in package pd: tokens that came before, that are new, and that
// are lost.
type returning struct {
	lookedUp, entered bool
	seen, new, lost   int
}

// setNew works out what of a request's prompt is new, and what is lost, as package pd does.
func (f *fleet) setNew(j *job) {
	if !f.protects {
		return
	}
	prompt := knownBlocks(j.req)
	r := &j.returns
	if !r.lookedUp {
		r.lookedUp, r.seen = true, f.ghosts.Seen(&prompt)
	}
	r.new, r.lost = f.field.NewAndLost(prompt.Tokens(), r.seen)
}

// enterSeen notes that a request goes to its servers.
func (f *fleet) enterSeen(v *View, j *job) {
	if !f.protects || j.returns.entered {
		return
	}
	j.returns.entered = true
	prompt := knownBlocks(j.req)
	f.ghosts.Enter(&prompt, j.returns.lost, func() int { return v.DecodeCapacity() * len(f.field.Decode) })
}

// knownBlocks is a prompt as package ghost knows it: a block of a trace is known by its number.
func knownBlocks(r *Request) ghost.Prompt {
	whole := r.whole()
	return ghost.Prompt{Blocks: len(whole), BlockTokens: blockTokens, Hash: func(block int) uint64 { return uint64(whole[block]) }}
}

// protect protects the caches of some decode servers where that is of use.
func (f *fleet) protect() {
	if f.protects {
		f.field.Protect(f.ghosts.LostShare())
	}
}
