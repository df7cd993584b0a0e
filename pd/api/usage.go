package api

import (
	"bytes"

	"github.com/tidwall/gjson"
)

// Count is a number of tokens that an engine may not have reported.
type Count struct {
	Tokens int
	Known  bool
}

// Usage is what an engine reports of one answer.
type Usage struct {
	Prompt Count
	Output Count
	Cached Count // prompt tokens that the answering server did not compute
}

// Merge takes over what a later report of the same answer says: the Messages API spreads its usage
// over two events.
func (u *Usage) Merge(later Usage) {
	keep := func(into *Count, c Count) {
		if c.Known {
			*into = c
		}
	}
	keep(&u.Prompt, later.Prompt)
	keep(&u.Output, later.Output)
	keep(&u.Cached, later.Cached)
}

// UpTo leaves out counts of more than so many tokens.
func (u Usage) UpTo(most int) Usage {
	for _, c := range []*Count{&u.Prompt, &u.Output, &u.Cached} {
		if c.Tokens > most {
			*c = Count{}
		}
	}
	return u
}

// HasNoChoices reports whether an event has a list of choices with none in it: it came for its usage.
func HasNoChoices(event []byte) bool {
	choices := gjson.GetBytes(event, "choices")
	return choices.IsArray() && choices.Get("#").Int() == 0
}

// ReadUsage returns the usage in a body or event, false if it has none.
func (d *Dialect) ReadUsage(data []byte) (Usage, bool) {
	u := d.FindUsage(data)
	return d.usageOf(data[u.Index : u.Index+len(u.Raw)])
}

// usageOf reads a usage object, false if it does not exist.
func (d *Dialect) usageOf(u Value) (Usage, bool) {
	if len(u) == 0 {
		return Usage{}, false
	}
	var usage Usage
	var created Count // where it is left out of the prompt's number
	for key, value := range u.Members() {
		switch {
		case key == d.prompt:
			usage.Prompt = count(value)
		case key == d.output:
			usage.Output = count(value)
		case leads(d.cached, key):
			usage.Cached = count(at(value, d.cached[1:]))
		case leads(d.created, key):
			created = count(at(value, d.created[1:]))
		}
	}
	if d.cacheApart && usage.Prompt.Known {
		usage.Prompt.Tokens += usage.Cached.Tokens + created.Tokens
	}
	return usage, true
}

// leads reports whether a path begins with a name.
func leads(path []string, name string) bool { return len(path) > 0 && path[0] == name }

// at is what stands at a path, nil if nothing does.
func at(value Value, path []string) Value {
	for _, name := range path {
		value = value.Member(name)
	}
	return value
}

// FindUsage returns the usage object in a body or event, one that does not exist if there
// is none. It aliases data.
func (d *Dialect) FindUsage(data []byte) gjson.Result {
	if !bytes.Contains(data, []byte(d.usageKey())) {
		return gjson.Result{}
	}
	for _, place := range d.usages {
		if u := gjson.GetBytes(data, place); u.IsObject() {
			return u
		}
	}
	return gjson.Result{}
}

// AddToUsage returns a body or an event's data with one more member in its usage, which is made
// of what the usage says. All other bytes stay as they are, and so does what has no usage, or one
// that has the member already.
func (d *Dialect) AddToUsage(data []byte, name string, value func(Usage) []byte) []byte {
	u := d.FindUsage(data)
	end := u.Index + len(u.Raw) - 1 // of its last bracket
	if !u.IsObject() || u.Index == 0 || end >= len(data) || data[end] != '}' || u.Get(name).Exists() {
		return data
	}
	usage, _ := d.ReadUsage(data)
	members := bytes.TrimRight(data[:end], " \t\r\n")
	added := make([]byte, 0, len(data)+len(name)+128)
	added = append(added, members...)
	if members[len(members)-1] != '{' {
		added = append(added, ',')
	}
	added = append(append(append(added, '"'), name...), `":`...)
	return append(append(added, value(usage)...), data[len(members):]...)
}

// LastUsage reports whether the usage in an event of a stream counts the whole answer:
// others may leave out what is known at its end, such as cached tokens.
func (d *Dialect) LastUsage(event []byte) bool {
	switch d {
	case Messages:
		return gjson.GetBytes(event, "type").String() != "message_start"
	case Chat, Completions:
		return gjson.GetBytes(event, "choices.#").Int() == 0
	}
	return true
}

// usageKey is in every body or event that has a usage.
func (d *Dialect) usageKey() string {
	switch {
	case d.Native:
		return `"meta_info"`
	case d.usages[0] == "meta."+billedUnits:
		return `"` + billedUnits + `"`
	}
	return `"usage"`
}

// billedUnits is what Cohere calls usage.
const billedUnits = "billed_units"

// mostTokens is more than any request has: a longer count would be in metrics and in the key's limits for ever.
const mostTokens = 1 << 31

func count(v Value) Count {
	tokens, ok := v.InDigits().Int()
	if !ok || tokens < 0 || tokens > mostTokens {
		return Count{}
	}
	return Count{Tokens: int(tokens), Known: true}
}

// Recomputed reports whether decode computed a prompt of which so many tokens were handed
// over: what it did not compute is then less than half of that. Block sizes keep the two
// from being equal. reports says that the engine reports cached tokens, so that their
// absence means none.
func Recomputed(decode Usage, handed int, reports bool) bool {
	if handed == 0 || !decode.Cached.Known && !(reports && decode.Prompt.Known) {
		return false
	}
	return 2*decode.Cached.Tokens < handed
}
