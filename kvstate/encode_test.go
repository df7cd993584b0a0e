package kvstate

import (
	"slices"

	"github.com/tinylib/msgp/msgp"
)

// wireEvent is an event for tests to publish.
type wireEvent struct {
	kind    string
	hashes  []uint64
	parent  uint64 // 0: none
	tokens  []uint32
	size    int
	adapter string
	medium  string
	extra   [][]string // by block
	group   int
	spec    string
	where   string   // locality
	behind  []uint32 // lookahead_token_ids
}

// wireForm is one of the forms in which engines write hashes and events.
type wireForm struct {
	maps   bool
	hashes string // "uint", "int", "bin"
	short  bool   // arrays without the fields that came later, maps likewise
}

func (f wireForm) hash(b []byte, h uint64) []byte {
	switch f.hashes {
	case "int":
		return msgp.AppendInt64(b, int64(h))
	case "bin":
		digest := make([]byte, 24, 32)
		return msgp.AppendBytes(b, append(digest, byte(h>>56), byte(h>>48), byte(h>>40), byte(h>>32), byte(h>>24), byte(h>>16), byte(h>>8), byte(h)))
	}
	return msgp.AppendUint64(b, h)
}

type wireField struct {
	name string
	put  func(b []byte) []byte
	late bool
}

func text(s string) func([]byte) []byte {
	return func(b []byte) []byte {
		if s == "" {
			return msgp.AppendNil(b)
		}
		return msgp.AppendString(b, s)
	}
}

// located adds where a block is, which came after the maps.
func (f wireForm) located(fields []wireField, where string) []wireField {
	if !f.maps {
		return fields
	}
	return append(fields, wireField{"locality", text(where), true})
}

// lookahead adds the tokens behind each block, where there are some.
func (e wireEvent) lookahead(f wireForm, fields []wireField) []wireField {
	if e.behind == nil || !f.maps {
		return fields
	}
	return append(fields, wireField{"lookahead_token_ids", func(b []byte) []byte {
		all := slices.Concat(e.tokens, e.behind)
		b = msgp.AppendArrayHeader(b, uint32(len(e.hashes)))
		for i := range e.hashes {
			b = msgp.AppendArrayHeader(b, uint32(len(e.behind)))
			for _, t := range all[(i+1)*e.size:][:len(e.behind)] {
				b = msgp.AppendUint32(b, t)
			}
		}
		return b
	}, true})
}

func (e wireEvent) fields(f wireForm) []wireField {
	hashes := wireField{"block_hashes", func(b []byte) []byte {
		b = msgp.AppendArrayHeader(b, uint32(len(e.hashes)))
		for _, h := range e.hashes {
			b = f.hash(b, h)
		}
		return b
	}, false}
	medium := wireField{"medium", text(e.medium), e.medium == ""}
	group := wireField{"group_idx", func(b []byte) []byte { return msgp.AppendInt(b, e.group) }, true}
	switch e.kind {
	case "BlockRemoved":
		return f.located([]wireField{hashes, medium, group}, e.where)
	case "BlockStored":
		return e.lookahead(f, f.located([]wireField{
			hashes,
			{"parent_block_hash", func(b []byte) []byte {
				if e.parent == 0 {
					return msgp.AppendNil(b)
				}
				return f.hash(b, e.parent)
			}, false},
			{"token_ids", func(b []byte) []byte {
				b = msgp.AppendArrayHeader(b, uint32(len(e.tokens)))
				for _, t := range e.tokens {
					b = msgp.AppendUint32(b, t)
				}
				return b
			}, false},
			{"block_size", func(b []byte) []byte { return msgp.AppendInt(b, e.size) }, false},
			{"lora_id", msgp.AppendNil, e.medium == "" && e.adapter == ""},
			medium,
			{"lora_name", text(e.adapter), e.adapter == "" && e.extra == nil},
			{"extra_keys", func(b []byte) []byte {
				if e.extra == nil {
					return msgp.AppendNil(b)
				}
				b = msgp.AppendArrayHeader(b, uint32(len(e.extra)))
				for _, keys := range e.extra {
					if keys == nil {
						b = msgp.AppendNil(b)
						continue
					}
					b = msgp.AppendArrayHeader(b, uint32(len(keys)))
					for _, k := range keys {
						b = msgp.AppendString(b, k)
					}
				}
				return b
			}, e.extra == nil},
			group,
			{"kv_cache_spec_kind", text(e.spec), true},
			{"kv_cache_spec_sliding_window", msgp.AppendNil, true},
		}, e.where))
	}
	return nil
}

func (e wireEvent) append(b []byte, f wireForm) []byte {
	var fields []wireField
	for _, field := range e.fields(f) {
		if f.short && field.late {
			if !f.maps {
				break
			}
			continue
		}
		fields = append(fields, field)
	}
	if f.maps {
		b = msgp.AppendMapHeader(b, uint32(1+len(fields)))
		b = msgp.AppendString(msgp.AppendString(b, "type"), e.kind)
	} else {
		b = msgp.AppendArrayHeader(b, uint32(1+len(fields)))
		b = msgp.AppendString(b, e.kind)
	}
	for _, field := range fields {
		if f.maps {
			b = msgp.AppendString(b, field.name)
		}
		b = field.put(b)
	}
	return b
}

// wireBatch is the payload of a message.
func wireBatch(f wireForm, seconds float64, events ...wireEvent) []byte {
	b := msgp.AppendArrayHeader(nil, 3)
	b = msgp.AppendFloat64(b, seconds)
	b = msgp.AppendArrayHeader(b, uint32(len(events)))
	for _, e := range events {
		b = e.append(b, f)
	}
	return msgp.AppendNil(b)
}
