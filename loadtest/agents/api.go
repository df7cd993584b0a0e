package agents

import (
	"bytes"
	"encoding/json"
	"slices"
)

// api is how requests and answers of one API are written.
type api struct {
	name, path string
	// head begins each body, and tail ends it, up to the length of the answer.
	head func(model string, w *workload) []byte
	// step is what a step adds to a body; the last one has the marks of what to cache.
	step func(b *bytes.Buffer, s *step, last bool)
	tail string // of fmt.Sprintf with the answer's length
	// content reports whether an event's data brings a part of the answer.
	content func(data []byte) bool
	// usage reads the whole prompt and what of it was cached out of an event's data; false:
	// this one has none.
	usage func(data []byte) (u usage, ok bool)
}

// usage is what an engine says of a prompt, in tokens.
type usage struct{ prompt, cached int }

var apis = []*api{chat, messages, responses}

// APIs are the names of those that agents speak here.
func APIs() (names []string) {
	for _, a := range apis {
		names = append(names, a.name)
	}
	return names
}

func findAPI(name string) *api {
	return apis[place(name)]
}

// place is where an API stands among all.
func place(name string) int {
	return slices.IndexFunc(apis, func(a *api) bool { return a.name == name })
}

// quoted is a text as JSON.
func quoted(text string) string {
	raw, err := json.Marshal(text)
	if err != nil {
		panic(err) // a string
	}
	return string(raw)
}

// arguments of a call, as JSON.
func (c *call) arguments() string {
	return `{"path":` + quoted(c.path) + `,"limit":200}`
}

const schema = `{"type":"object","properties":{"path":{"type":"string","description":%s},"limit":{"type":"integer","minimum":1}},"required":["path"],"additionalProperties":false}`

// reminder is what agents put before the first question: where they are and what they know.
const reminder = "The directory is /src/project, a git repository on branch main. Answer briefly."
