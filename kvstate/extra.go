package kvstate

import "github.com/tinylib/msgp/msgp"

// root is the parent of the first blocks of an event.
func (s *Source) root(e *event) Hash {
	adapter := string(e.adapter)
	if adapter == "" && e.adapterID >= 0 {
		adapter = "\x00" + string(msgp.AppendInt64(nil, e.adapterID)) // no prompt names it so
	}
	return e.form().root(s.seed, s.model.name, adapter, e.tokens)
}

// extraKeys walks over the extra keys of an event's blocks.
type extraKeys struct {
	seed    *Seed
	rest    []byte // entries of the blocks to come
	left    uint32
	adapter string // not counted once: it is in the root
	salt    string // of the first block, separate from its keys
}

// extraKeys starts the walk. An event for first blocks may have the salt beside them.
func (e *event) extraKeys(seed *Seed, first bool) extraKeys {
	k := extraKeys{seed: seed, adapter: string(e.adapter)}
	if first {
		k.salt = string(e.salt)
	}
	if n, rest, err := msgp.ReadArrayHeaderBytes(e.extra); err == nil {
		k.left, k.rest = n, rest
	}
	return k
}

// next adds up the keys of the next block.
func (k *extraKeys) next() (sum uint64, err error) {
	adapter, salt := k.adapter, k.salt
	k.salt = ""
	if k.left > 0 {
		k.left--
		if msgp.IsNil(k.rest) {
			k.rest = k.rest[1:]
		} else {
			var n uint32
			if n, k.rest, err = msgp.ReadArrayHeaderBytes(k.rest); err != nil {
				return 0, err
			}
			for range n {
				key, rest, err := extraKey(k.rest)
				if err != nil {
					return 0, err
				}
				k.rest = rest
				switch {
				case adapter != "" && key == adapter:
					adapter = ""
				case salt != "" && key == salt:
					sum += k.seed.Extra(key)
					salt = ""
				default:
					sum += k.seed.Extra(key)
				}
			}
		}
	}
	if salt != "" {
		sum += k.seed.Extra(salt)
	}
	return sum, nil
}

// extraKey reads one key: a string, bytes, or a list that begins with one (a medium's
// hash and its offset, as vLLM sent it before 0.18). Others count by their bytes.
func extraKey(p []byte) (key string, rest []byte, err error) {
	rest, err = msgp.Skip(p)
	if err != nil {
		return "", nil, err
	}
	at := p
	if n, inside, err := msgp.ReadArrayHeaderBytes(p); err == nil && n > 0 {
		at = inside
	}
	if v, _, err := msgp.ReadStringZC(at); err == nil {
		return string(v), rest, nil
	}
	if v, _, err := msgp.ReadBytesZC(at); err == nil {
		return string(v), rest, nil
	}
	return "\x00" + string(p[:len(p)-len(rest)]), rest, nil
}
