package connector

import (
	"bytes"
	"slices"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
)

// sharesIDs reports whether prefill is asked for the prompt's token ids in order to give
// them to decode: as the prompt of a completion, and in a chat's transfer parameters, which
// vLLM reads since 0.32 (vllm/renderers/online_renderer.py). It ignores them there with
// media or echo, and has no text of the prompt to show.
func (r Request) sharesIDs(from, to *pools.Server) bool {
	tells := from.IsVLLM(11) && from.ReportsTokenIDs() // since 0.10.2, ignored before
	if Of(to) != nixl || !tells {
		return false
	}
	return (r.Dialect != api.Chat || to.IsVLLM(32)) && r.mayShareIDs()
}

// mayShareIDs reports whether a request may be given as the ids of its prompt: a completion of a
// text, or a chat of text of which nothing shows the prompt.
func (r Request) mayShareIDs() bool {
	if slices.ContainsFunc(showingPrompt, func(field string) bool { return !r.Body.Get(field).Null() }) {
		return false
	}
	if r.Dialect == api.Completions {
		_, text := r.Body.Get("prompt").String()
		return text
	}
	return r.Dialect == api.Chat && (r.OnlyText || !hasMedia(r.Body.Get("messages")))
}

// noMessages stand in a chat whose messages nobody reads: a list without any is refused.
var noMessages = []byte(`[{"role":"user","content":""}]`)

// readsMessages reports whether vLLM reads the messages of a chat of which it has the prompt's ids. It
// renders none then, and looks at them only to number the calls of tools behind those that they have
// (parser/abstract_parser.py, history_tool_call_cnt), and for the role of an answer that begins no turn
// (entrypoints/openai/chat_completion/serving.py, get_chat_request_role). The text of a prompt is
// as long as its ids: what decode does not read it is spared.
func readsMessages(body api.Body) bool {
	tools := body.Get("tools")
	calls := !tools.Null() && !tools.IsEmptyArray() && string(body.Get("tool_choice")) != `"none"`
	begins := body.Get("add_generation_prompt")
	return calls || !begins.Null() && string(begins) != "true"
}

// showingPrompt are the fields that make vLLM show the prompt's text in its answer, or
// that give the prompt in another form.
var showingPrompt = []string{"echo", "return_prompt_text", "return_token_offsets", "prompt_embeds"}

// hasMedia reports whether a chat has parts that are no text.
func hasMedia(messages api.Value) bool {
	if len(messages) > 0 && bytes.IndexByte(messages[1:], '[') < 0 {
		return false // parts stand in an array: long prompts are not walked for them
	}
	for message := range messages.Elements() {
		for key, content := range message.Members() {
			if key == "content" && hasMediaPart(content) {
				return true
			}
		}
	}
	return false
}

// hasMediaPart reports whether a message's content has a part that is no text.
func hasMediaPart(content api.Value) bool {
	for part := range content.Elements() {
		if part.IsObject() && !part.IsTextPart() {
			return true
		}
	}
	return false
}
