package api

import (
	"bytes"
	"slices"
	"strconv"
)

// PromptUsage is what a client sees of its prompt in the usage: how long it is, what of it was
// cached, what was written to a cache. After a hand-off decode reports the transferred tokens
// as cached, which says nothing about the cache: the whole of it is prefill's, and where
// prefill reported nothing there is nothing of caches. The zero value leaves decode's.
type PromptUsage struct {
	Override bool
	Prefill  Value // prefill's usage object; nil: it reported none yet
	Handed   int   // tokens of the hand-off; 0: not known
	// Own is how many tokens of the prompt were computed for this very request by decode, before
	// the leg that reports them as cached.
	Own int
}

// put writes it into decode's usage.
func (p PromptUsage) put(usage Body, d *Dialect) Body {
	if !p.Override {
		return withoutOwn(usage, d, p.Own)
	}
	prefill, err := ParseBody(p.Prefill)
	if err != nil || prefill.Get(d.prompt) == nil || usage.Get(d.prompt) == nil {
		return withoutCache(usage, d)
	}
	var room [4]Edit
	edits := room[:0]
	for _, field := range d.promptFields() {
		value := prefill.Get(field)
		if value == nil && usage.Get(field) != nil && len(d.cached) > 1 {
			value = []byte("null") // details, which some clients want to be there
		}
		if !bytes.Equal(value, usage.Get(field)) {
			edits = append(edits, Set(field, value))
		}
	}
	if total := totalOf(usage, prefill.Get(d.prompt), d); total != nil {
		edits = append(edits, Set(totalField, total))
	}
	return usage.With(edits...) // itself where decode says the same
}

// withoutCache returns a usage that says nothing of caches. What was left out of the
// prompt for them is part of it again.
func withoutCache(usage Body, d *Dialect) Body {
	if prompt, ok := usage.Get(d.prompt).Int(); ok && d.cacheApart {
		cached, _ := usage.Get(d.cached[0]).Int()
		created, _ := usage.Get(d.created[0]).Int()
		usage = usage.With(Set(d.prompt, strconv.AppendInt(nil, prompt+cached+created, 10)))
	}
	for _, path := range [][]string{d.cached, d.created} {
		usage = cut(usage, path)
	}
	return usage
}

// withoutOwn returns a usage in which so many tokens fewer were cached, where it says that any were.
func withoutOwn(usage Body, d *Dialect, own int) Body {
	was := count(at(usage.Bytes(), d.cached))
	if !was.Known {
		return usage
	}
	return withCached(usage, d, was.Tokens, max(0, was.Tokens-own))
}

// withCached returns a usage by which so many tokens were cached, and not as many as it says.
func withCached(usage Body, d *Dialect, was, now int) Body {
	usage = set(usage, d.cached, now)
	if prompt, ok := usage.Get(d.prompt).Int(); ok && d.cacheApart { // what was not cached is in the prompt's number instead
		usage = set(usage, []string{d.prompt}, int(prompt)+was-now)
	}
	return usage
}

// set puts a number at a path that is there.
func set(object Body, path []string, n int) Body {
	if len(path) == 1 {
		return object.With(Set(path[0], strconv.AppendInt(nil, int64(n), 10)))
	}
	inner, _ := object.Get(path[0]).Object()
	return object.With(Set(path[0], set(inner, path[1:], n).Bytes()))
}

// cut deletes a path; an object that is empty then is null.
func cut(object Body, path []string) Body {
	if len(path) == 0 || object.Get(path[0]) == nil {
		return object
	}
	if len(path) == 1 {
		return object.With(Remove(path[0]))
	}
	inner, ok := object.Get(path[0]).Object()
	if !ok {
		return object
	}
	if inner = cut(inner, path[1:]); len(inner.Keys()) == 0 {
		return object.With(Set(path[0], []byte("null")))
	}
	return object.With(Set(path[0], inner.Bytes()))
}

const totalField = "total_tokens"

// withTotal makes the total, where there is one, that of prompt and output.
func withTotal(usage Body, d *Dialect) Body {
	if total := totalOf(usage, usage.Get(d.prompt), d); total != nil {
		return usage.With(Set(totalField, total))
	}
	return usage
}

// totalOf is the total of a usage with such a prompt; nil: it has none, or says that already.
func totalOf(usage Body, prompt Value, d *Dialect) []byte {
	in, known := prompt.Int()
	out, also := usage.Get(d.output).Int()
	was, _ := usage.Get(totalField).Int()
	if usage.Get(totalField).Null() || !known || !also || was == in+out {
		return nil
	}
	return strconv.AppendInt(nil, in+out, 10)
}

// promptFields are the fields of a usage object that are about the prompt.
func (d *Dialect) promptFields() []string {
	fields := append(make([]string, 0, 3), d.prompt)
	for _, path := range [][]string{d.cached, d.created} {
		if len(path) > 0 && !slices.Contains(fields, path[0]) {
			fields = append(fields, path[0])
		}
	}
	return fields
}
