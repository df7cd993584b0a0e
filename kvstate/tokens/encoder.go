package tokens

import (
	"encoding/json"
	"fmt"

	"github.com/tandem-gateway/tandem/kvstate/jsonscan"
)

// bytesPerToken is about how many bytes of text a token has: too few rather than too many, since
// room that is missing costs more than room that is left.
const bytesPerToken = 3

// encoder knows tokens by a tokenizer and a chat template of its own.
type encoder struct {
	vocabulary *vocabulary
	template   *chatTemplate // nil: completions only
	cache      *pieces
}

func loadEncoder(cfg Config) (*encoder, error) {
	v, err := loadVocabulary(cfg.TokenizerFile)
	if err != nil {
		return nil, err
	}
	e := &encoder{vocabulary: v, cache: newPieces(cfg.MemoryBytes)}
	if cfg.TemplateFile != "" {
		if e.template, err = loadTemplate(cfg.TemplateFile); err != nil {
			return nil, fmt.Errorf("chat template: %w", err)
		}
	}
	return e, nil
}

// tokens are all of a prompt's tokens, or the reason why it has none: what cannot be known
// exactly is tools, media, and fields that it does not know.
func (e *encoder) tokens(p *Prompt) (ids []uint32, why Reason) {
	if p.API == Completions {
		if ids, ok := e.completion(p); ok {
			return ids, ""
		}
		return nil, NotRendered
	}
	if e.template == nil {
		return nil, NoTemplate
	}
	chat, ok := p.conversation()
	if !ok {
		return nil, NotRendered
	}
	text, err := e.template.render(chat)
	if err != nil {
		return nil, BadTemplate
	}
	ids = make([]uint32, 0, len(text)/bytesPerToken)
	if ids, err = e.vocabulary.appendText(ids, text, e.cache); err != nil || len(ids) == 0 {
		return nil, BadTemplate
	}
	return ids, ""
}

// completion encodes the prompt of /v1/completions.
func (e *encoder) completion(p *Prompt) ([]uint32, bool) {
	var prompt []byte
	special := true
	for m, err := range jsonscan.Members(p.Body) {
		switch name := string(m.Key); {
		case err != nil:
			return nil, false
		case name == "prompt":
			prompt = m.Value
		case name == "add_special_tokens":
			special = string(m.Value) != "false"
		case silent[name], harmless[name], !present(m.Value):
		default:
			return nil, false
		}
	}
	text, ok := onlyText(prompt)
	if !ok {
		return nil, false
	}
	var ids []uint32
	if special {
		ids = append(ids, e.vocabulary.prefix...)
	}
	ids, err := e.vocabulary.appendText(ids, valid(text), e.cache)
	if special {
		ids = append(ids, e.vocabulary.suffix...)
	}
	return ids, err == nil && len(ids) > 0
}

// onlyText reads a string or a list of one.
func onlyText(raw []byte) (text string, ok bool) {
	if json.Unmarshal(raw, &text) == nil {
		return text, present(raw)
	}
	var list []string
	if json.Unmarshal(raw, &list) != nil || len(list) != 1 {
		return "", false
	}
	return list[0], true
}
