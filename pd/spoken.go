package pd

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/tandem-gateway/tandem/pools"
)

// spoken is what a chat has said so far as text. It carries the answer on where the engine
// tells no token ids and the operator allows it: as the last message, which the engine
// continues (continue_final_message). That is not exact: the text may be tokenised another
// way, templates may trim its white space, and its tokens are counted as the events that
// brought them.
type spoken struct {
	allowed    bool // for this request
	understood bool // by the engine that is asked too
	retold     bool // the leg under way continues it
	text       strings.Builder
	pieces     int // events that brought it
}

var errMoreThanText = errors.New("what was said does not determine the rest")

func (s *spoken) say(text string) {
	s.text.WriteString(text)
	s.pieces++
}

// continuesText reports whether a server's engine continues the last message of a chat.
// vLLM refuses add_generation_prompt, its default, beside that wish; SGLang takes the
// message off and puts its text behind the prompt, whatever that field says.
func continuesText(server *pools.Server) bool {
	engine := engineOf(server)
	return engine == "vllm" || engine == "sglang"
}

// retellable reports whether text may carry the request's answer on: of a chat whose answer
// is a turn of its own, and that does not show token ids.
func (s *story) retellable() bool {
	turn, given := s.req.Body.Get("add_generation_prompt").Bool()
	return s.req.Dialect == Chat && !s.showIDs && (turn || !given)
}

// retelling returns the chat that tells the rest.
func (s *story) retelling() (*Request, error) {
	messages, ok := bytes.CutSuffix(bytes.TrimSpace(s.req.Body.Get("messages")), []byte("]"))
	said := s.spoken.pieces
	if !ok || s.odd || s.finished || said == 0 || s.req.MaxOutput > 0 && said >= s.req.MaxOutput {
		return nil, errMoreThanText
	}
	text, err := json.Marshal(s.spoken.text.String())
	if err != nil {
		return nil, err
	}
	turn := append(append([]byte(`,{"role":"assistant","content":`), text...), "}]"...)
	rest := *s.req
	rest.Body = rest.Body.With(
		Edit{"messages", append(bytes.Clone(messages), turn...)},
		Edit{"add_generation_prompt", []byte("false")},
		Edit{"continue_final_message", []byte("true")},
	)
	if rest.MaxOutput > 0 {
		rest.MaxOutput -= said
		rest.OutputTokens = min(rest.OutputTokens, rest.MaxOutput)
		for _, limit := range rest.Dialect.Limits() { // engines differ in which they read
			if limit == rest.MaxField || !rest.Body.Get(limit).Null() {
				rest.Body = rest.Body.With(Edit{limit, strconv.AppendInt(nil, int64(rest.MaxOutput), 10)})
			}
		}
	}
	if least, ok := rest.Body.Get("min_tokens").Int(); ok {
		rest.Body = rest.Body.With(Edit{"min_tokens", strconv.AppendInt(nil, max(0, least-int64(said)), 10)})
	}
	rest.PromptTokens += said
	s.before, s.resumed, s.spoken.retold = said, true, true
	return &rest, nil
}
