package tokens

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/nikolalohinski/gonja/v2/builtins"
	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/loaders"
)

// chatTemplate is a Jinja chat template with the variables of its tokenizer.
type chatTemplate struct {
	template  *exec.Template
	variables map[string]any // bos_token and the like
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
	variables := map[string]any{}
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

// What lstrip_blocks and trim_blocks take out of a template: white space from the
// beginning of a line to a block or comment, and the newline after one. The library
// strips in the middle of lines too.
var (
	blockIndent  = regexp.MustCompile(`(?m)^[ \t]+(\{[%#](?:[^+]|$))`)
	blockNewline = regexp.MustCompile(`((?:^|[^+])[%#]\})\n`)
)

// newTemplate compiles a template with the settings of Hugging Face's transformers.
func newTemplate(source string, variables map[string]any) (*chatTemplate, error) {
	const name = "/chat_template"
	source = blockIndent.ReplaceAllString(source, "$1")
	source = blockNewline.ReplaceAllString(source, "$1")
	loader, err := loaders.NewMemoryLoader(map[string]string{name: source}) // includes nothing else
	if err != nil {
		return nil, err
	}
	globals := exec.EmptyContext().Update(builtins.GlobalFunctions).Update(builtins.GlobalVariables).Update(exec.NewContext(map[string]any{
		"raise_exception": func(message string) (string, error) { return "", errors.New(message) },
		// A template that writes the date writes that of the engine's clock and zone.
		"strftime_now": func(string) (string, error) { return "", errors.New("the template writes the date") },
		"range":        numbers, // the library's own leaves a goroutine behind when a loop breaks
	}))
	template, err := exec.NewTemplate(name, config.New(), loader, &exec.Environment{
		Context: globals, Filters: builtins.Filters, Tests: builtins.Tests,
		ControlStructures: builtins.ControlStructures, Methods: builtins.Methods,
	})
	if err != nil {
		return nil, err
	}
	return &chatTemplate{template: template, variables: variables}, nil
}

// maxNumbers bounds a range in a template.
const maxNumbers = 1 << 20

// numbers is range: up to an end, from a start, by a step.
func numbers(bounds ...int) ([]int, error) {
	start, end, step := 0, 0, 1
	switch len(bounds) {
	case 1:
		end = bounds[0]
	case 2:
		start, end = bounds[0], bounds[1]
	case 3:
		start, end, step = bounds[0], bounds[1], bounds[2]
	}
	if step == 0 || len(bounds) < 1 || len(bounds) > 3 {
		return nil, errors.New("range takes an end, or a start, an end and a step")
	}
	var out []int
	for i := start; step > 0 && i < end || step < 0 && i > end; i += step {
		if len(out) == maxNumbers {
			return nil, errors.New("the range is too long")
		}
		out = append(out, i)
	}
	return out, nil
}

// render is the text that a conversation becomes. A template that fails, or makes the
// library fail, has no text.
func (t *chatTemplate) render(c conversation) (text string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the template engine failed: %v", p)
		}
	}()
	variables := make(map[string]any, len(t.variables)+len(c.variables)+3)
	for _, from := range []map[string]any{t.variables, c.variables} {
		for k, v := range from {
			variables[k] = v
		}
	}
	messages := make([]any, len(c.messages))
	for i, m := range c.messages {
		messages[i] = m
	}
	variables["messages"] = messages
	variables["add_generation_prompt"] = c.addGeneration
	return t.template.ExecuteToString(exec.NewContext(variables))
}
