package api

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/tidwall/gjson"
)

// HandoffField carries the hand-off in requests and answers of vLLM.
const HandoffField = "kv_transfer_params"

// encoderField carries where an encoder's output is, in requests and answers of vLLM.
const encoderField = "ec_transfer_params"

// CleanAnswer removes what belongs between engines from a body or event that is
// an object, and gives its usage what the client is to see of the prompt. It returns
// data itself when nothing changes, and an error for what it cannot read: that must not pass.
func (d *Dialect) CleanAnswer(data []byte, prompt PromptUsage) ([]byte, error) {
	transfer := bytes.Contains(data, []byte(HandoffField)) || bytes.Contains(data, []byte(encoderField))
	usage := (prompt.Override || prompt.Own > 0) && bytes.Contains(data, []byte(d.usageKey()))
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
	return d.clean(body, prompt).Bytes(), nil
}

// clean is CleanAnswer of a body.
func (d *Dialect) clean(body Body, prompt PromptUsage) Body {
	body = dropHandoff(body)
	if prompt.Override || prompt.Own > 0 {
		for _, place := range d.usages {
			body = editAt(body, place, func(u Body) Body { return prompt.put(u, d) })
		}
	}
	return body
}

// dropHandoff deletes the hand-offs at the top and inside a response object.
func dropHandoff(body Body) Body {
	drop := func(b Body) Body {
		if b.Get(HandoffField) == nil && b.Get(encoderField) == nil { // as in most answers
			return b
		}
		return b.With(Remove(HandoffField), Remove(encoderField))
	}
	return editAt(drop(body), "response", drop)
}

// AnswerHandoff returns the hand-off in an event of decode's own answer, as a copy: see Answer.Handoff.
func AnswerHandoff(event []byte) []byte {
	if !bytes.Contains(event, []byte(`"do_remote_decode"`)) {
		return nil
	}
	for _, place := range []string{HandoffField, "response." + HandoffField} {
		if params := handoffIn(gjson.GetBytes(event, place)); params != nil {
			return params
		}
	}
	return nil
}

// handoffIn is a copy of transfer parameters that name the KV of an answer, nil of others.
func handoffIn(params gjson.Result) []byte {
	if !params.Get("do_remote_decode").Bool() {
		return nil
	}
	return []byte(params.Raw)
}

// editAt changes the object at a place, keys with dots between them, if there is one.
func editAt(body Body, place string, change func(Body) Body) Body {
	key, rest, deeper := strings.Cut(place, ".")
	inner, ok := body.Get(key).Object()
	if !ok {
		return body
	}
	if deeper {
		inner = editAt(inner, rest, change)
	} else {
		inner = change(inner)
	}
	if !inner.Edited() {
		return body
	}
	return body.With(Set(key, inner.Bytes()))
}
