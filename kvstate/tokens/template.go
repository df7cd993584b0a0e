package tokens

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"

	"github.com/tandem-gateway/tandem/kvstate/tokens/jinja"
)

// chatTemplate is a Jinja chat template with the variables of its tokenizer.
type chatTemplate struct {
	template  *jinja.Template
	variables map[string]jinja.Value // bos_token and the like
	developer bool                   // it knows messages of developers
}

// tokenizerConfig is what is read of a tokenizer_config.json.
type tokenizerConfig struct {
	Template json.RawMessage `json:"chat_template"`
	Bos      json.RawMessage `json:"bos_token"`
	Eos      json.RawMessage `json:"eos_token"`
	Pad      json.RawMessage `json:"pad_token"`
	Unk      json.RawMessage `json:"unk_token"`
}

// loadTemplate reads a template as text, or a tokenizer_config.json.
func loadTemplate(path string) (*chatTemplate, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if !strings.HasSuffix(path, ".json") {
		return newTemplate(string(raw), nil)
	}
	var c tokenizerConfig
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	source, err := c.source()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	variables := map[string]jinja.Value{}
	for name, value := range map[string]json.RawMessage{"bos_token": c.Bos, "eos_token": c.Eos, "pad_token": c.Pad, "unk_token": c.Unk} {
		if text, ok := tokenText(value); ok {
			variables[name] = text
		}
	}
	return newTemplate(source, variables)
}

// source is the template: a string, or the one called default of a list.
func (c *tokenizerConfig) source() (string, error) {
	var one string
	if json.Unmarshal(c.Template, &one) == nil && one != "" {
		return one, nil
	}
	var named []struct{ Name, Template string }
	if json.Unmarshal(c.Template, &named) == nil {
		for _, n := range named {
			if n.Name == "default" {
				return n.Template, nil
			}
		}
	}
	return "", errors.New("there is no chat_template")
}

// tokenText reads a token: a string, or an object with its content.
func tokenText(raw json.RawMessage) (string, bool) {
	var text string
	var object struct{ Content string }
	switch {
	case !present(raw):
		return "", false
	case json.Unmarshal(raw, &text) == nil:
		return text, true
	}
	return object.Content, json.Unmarshal(raw, &object) == nil
}

// newTemplate parses a template.
func newTemplate(source string, variables map[string]jinja.Value) (*chatTemplate, error) {
	template, err := jinja.Parse(source)
	if err != nil {
		return nil, err
	}
	// vLLM looks for these texts too (renderers/hf.py, _detect_developer_role_support).
	developer := strings.Contains(source, `"developer"`) || strings.Contains(source, "'developer'")
	return &chatTemplate{template: template, variables: variables, developer: developer}, nil
}

var errContentForm = errors.New("the template makes another text of parts than of text")

// render is the text that a conversation becomes. Where the template has a loop over contents, an
// engine gives it lists of parts or texts, as it finds by the template's form or is told: both
// must give the same text.
func (t *chatTemplate) render(c *conversation) (string, error) {
	text, err := t.renderForm(c, false)
	if err != nil || !t.template.LoopsOverContent() {
		return text, err
	}
	if c.extraParts {
		return "", errContentForm
	}
	parts, err := t.renderForm(c, true)
	if err == nil && parts != text {
		err = errContentForm
	}
	return text, err
}

// renderForm renders with contents as texts or as parts.
func (t *chatTemplate) renderForm(c *conversation, parts bool) (string, error) {
	variables := make(map[string]jinja.Value, len(t.variables)+len(c.variables)+4)
	maps.Copy(variables, t.variables)
	maps.Copy(variables, c.variables)
	variables["messages"] = jinja.NewList(c.values(t.developer, parts)...)
	variables["tools"], variables["documents"] = c.tools, nil
	variables["add_generation_prompt"] = c.addGeneration
	return t.template.Render(variables)
}
