package kvstate

// Prompt is what the KV of a request depends on.
type Prompt struct {
	Model   string // base model
	Adapter string // LoRA name, empty without
	Salt    string // cache salt, empty without
	Tokens  []uint32
	// Media are the images and the like behind the placeholders in Tokens, in order.
	Media []Medium
	// Hashed is what is kept beside tokens that Tokens are the beginning of, nil if nothing is.
	Hashed *Hashed
}

// Medium is one image or the like. A prompt matches up to the first medium whose hash
// is not known.
type Medium struct {
	Hash   string // as the engine names it; empty: not known
	Offset int    // first placeholder, in tokens
	Length int    // placeholders, in tokens
}

// appendChain appends the hashes of the prompt's whole blocks, up to the first medium
// that is not known.
func (p *Prompt) appendChain(dst []Hash, seed *Seed, form blockForm) []Hash {
	if len(p.Tokens) < form.lookahead {
		return dst
	}
	root, blockTokens := form.root(seed, p.Model, p.Adapter, p.Tokens), form.blockTokens
	covered := p.Tokens[form.lookahead:]
	salt := uint64(0)
	if p.Salt != "" {
		salt = seed.Extra(p.Salt)
	}
	if len(p.Media) == 0 {
		return seed.Chain(dst, root, covered, blockTokens, salt)
	}
	h, extra := root, salt
	for from := 0; from+blockTokens <= len(covered); from += blockTokens {
		for _, m := range p.Media {
			if m.Offset >= from+blockTokens+form.lookahead || m.Offset+m.Length <= from {
				continue
			}
			if m.Hash == "" {
				return dst
			}
			extra += seed.Extra(m.Hash)
		}
		h = seed.Block(h, covered[from:from+blockTokens], extra)
		dst = append(dst, h)
		extra = 0
	}
	return dst
}
