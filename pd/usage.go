package pd

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// Count is a number of tokens that an engine may not have told.
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

// readUsage returns the usage in a body or event, false if it has none.
func (d *Dialect) readUsage(data []byte) (Usage, bool) {
	if !bytes.Contains(data, []byte(d.usageKey())) {
		return Usage{}, false
	}
	for _, place := range d.usages {
		u := gjson.GetBytes(data, place)
		if !u.IsObject() {
			continue
		}
		return Usage{
			Prompt: count(u.Get(d.prompt)),
			Output: count(u.Get(d.output)),
			Cached: count(u.Get(strings.Join(d.cached, "."))),
		}, true
	}
	return Usage{}, false
}

// usageKey is in every body or event that has a usage.
func (d *Dialect) usageKey() string {
	if d.Native {
		return `"meta_info"`
	}
	return `"usage"`
}

func count(r gjson.Result) Count {
	if r.Type != gjson.Number || r.Int() < 0 {
		return Count{}
	}
	return Count{Tokens: int(r.Int()), Known: true}
}

// cleanAnswer removes what belongs between engines from a body or event that is
// an object, and sets the cached tokens where cached says so. It returns data
// itself when nothing changes, and an error for what it cannot read: that must not pass.
func (d *Dialect) cleanAnswer(data []byte, cached cachedTokens) ([]byte, error) {
	transfer := bytes.Contains(data, []byte(handoffField)) || bytes.Contains(data, []byte(encoderField))
	usage := cached.override && bytes.Contains(data, []byte(d.usageKey()))
	if !transfer && !usage {
		return data, nil
	}
	body, err := ParseBody(data)
	if errors.Is(err, ErrNotObject) {
		return data, nil // nothing but an object holds either
	}
	if err != nil {
		return nil, fmt.Errorf("the engine's answer: %w", err)
	}
	if transfer {
		body = dropHandoff(body)
	}
	if usage {
		for _, place := range d.usages {
			body = editAt(body, strings.Split(place, "."), func(u Body) Body { return cached.set(u, d.cached) })
		}
	}
	return body.Bytes(), nil
}

// dropHandoff deletes the hand-offs at the top and inside a response object.
func dropHandoff(body Body) Body {
	drop := func(b Body) Body { return b.With(Edit{Key: handoffField}, Edit{Key: encoderField}) }
	return editAt(drop(body), []string{"response"}, drop)
}

// retains reports whether decode's answer is a hand-off itself: an engine with
// bidirectional_kv_xfer keeps the blocks of the answer for the next prefill to fetch, for
// 480 s (vllm nixl/pull_scheduler.py). Nothing fetches them here.
func retains(data []byte) bool {
	if !bytes.Contains(data, []byte(`"do_remote_decode"`)) {
		return false
	}
	for _, place := range []string{handoffField, "response." + handoffField} {
		if gjson.GetBytes(data, place+".do_remote_decode").Bool() {
			return true
		}
	}
	return false
}

// editAt changes the object at path, if there is one.
func editAt(body Body, path []string, change func(Body) Body) Body {
	inner, ok := body.Get(path[0]).Object()
	if !ok {
		return body
	}
	if len(path) == 1 {
		inner = change(inner)
	} else {
		inner = editAt(inner, path[1:], change)
	}
	return body.With(Edit{path[0], inner.Bytes()})
}

// cachedTokens says what the client is told of the prompt tokens that were
// cached. After a hand-off decode reports the transferred tokens there, which
// says nothing about the cache: the true number is prefill's, and where prefill
// told none there is none.
type cachedTokens struct {
	override bool
	prefill  Count
	handed   int // tokens of the hand-off; 0: not told
}

// set writes the number at path inside a usage object.
func (c cachedTokens) set(usage Body, path []string) Body {
	if len(path) == 0 {
		return usage
	}
	key := path[0]
	if len(path) == 1 {
		if !c.prefill.Known {
			return usage.With(Edit{Key: key})
		}
		return usage.With(Edit{key, strconv.AppendInt(nil, int64(c.prefill.Tokens), 10)})
	}
	details, ok := usage.Get(key).Object()
	if !ok {
		if !c.prefill.Known {
			return usage
		}
		details, _ = ParseBody([]byte("{}")) // an empty object always parses
	}
	details = c.set(details, path[1:])
	if len(details.Keys()) == 0 {
		return usage.With(Edit{key, []byte("null")})
	}
	return usage.With(Edit{key, details.Bytes()})
}

// recomputed reports whether decode computed a prompt that was handed to it:
// what it did not compute is then less than half of what should have come. Block
// sizes keep the two from being equal. tells says that the engine reports cached
// tokens, so that their absence means none.
func recomputed(decode Usage, handed int, tells bool) bool {
	if handed == 0 || !decode.Cached.Known && !(tells && decode.Prompt.Known) {
		return false
	}
	return 2*decode.Cached.Tokens < handed
}
