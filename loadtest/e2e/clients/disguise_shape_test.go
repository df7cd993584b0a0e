package clients

import (
	"encoding/json"
	"strings"
	"testing"
)

// A body keeps its shape, what the API prescribes and its length, and has none of its words; what
// was equal is equal, so that a schema still names its own properties and a call its tool.
func TestDisguise_KeepsTheShapeAndNoWord(t *testing.T) {
	body := `{"model":"m","system":"Harken: the Widget <b>4711</b> \n\"quoted\" — größer","messages":[{"role":"user","content":[{"type":"text","text":"the widget"}]},` +
		`{"role":"assistant","content":[{"type":"tool_use","id":"call_12345","name":"open_widget","input":{"file_path":"/widget/x1","type":"widget"}}]}],` +
		`"tools":[{"name":"open_widget","input_schema":{"type":"object","properties":{"file_path":{"type":"string","enum":["widget"]},"type":{"type":["string","null"]}},"required":["file_path","type"]}}],` + "\n  " + `"max_tokens" : 32000 } `
	got, err := disguise([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	var b struct {
		Model, System string
		Messages      []struct {
			Role    string
			Content []struct {
				Type, Name, Text string
				Input            map[string]string
			}
		}
		Tools []struct {
			Name        string
			InputSchema struct {
				Type       string
				Properties map[string]struct{ Type any }
				Required   []string
			} `json:"input_schema"`
		}
		Max int `json:"max_tokens"`
	}
	if err := json.Unmarshal(got, &b); err != nil {
		t.Fatalf("%v: %s", err, got)
	}
	for _, word := range []string{"arken", "idget", "4711", "quoted", "open_", "file", "path", "12345", "größ"} {
		if strings.Contains(string(got), word) {
			t.Errorf("%q is still there: %s", word, got)
		}
	}
	call, tool := b.Messages[1].Content[0], b.Tools[0]
	if !strings.HasSuffix(string(got), ",\n  \"max_tokens\" : 32000 } ") {
		t.Errorf("white space is lost: %s", got)
	}
	if len(got) != len(body) || b.Model != "m" || b.Max != 32000 || b.Messages[1].Role != "assistant" || call.Type != "tool_use" || tool.InputSchema.Type != "object" {
		t.Errorf("%d bytes of %d: %s", len(got), len(body), got)
	}
	if call.Name != tool.Name || len(call.Input) != 2 || len(tool.InputSchema.Properties) != 2 {
		t.Errorf("the call and its tool: %+v, %+v", call, tool)
	}
	for _, name := range tool.InputSchema.Required {
		if _, named := tool.InputSchema.Properties[name]; !named || call.Input[name] == "" {
			t.Errorf("%q is no property, or not in the call: %s", name, got)
		}
	}
	if !strings.HasSuffix(strings.ToLower(b.Messages[0].Content[0].Text), strings.ToLower(call.Input[tool.InputSchema.Required[1]])) {
		t.Errorf("one word became two: %s", got)
	}
}

// Tools of different names keep different names, whatever their words become: a call says by its
// name which one is meant.
func TestDisguise_ToolsOfDifferentNamesStayDifferent(t *testing.T) {
	names := func(body string) (names []string) {
		t.Helper()
		var tools []struct{ Name string }
		got, err := disguise([]byte(body))
		if err == nil {
			err = json.Unmarshal(got, &tools)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, tool := range tools {
			names = append(names, tool.Name)
		}
		return names
	}
	var body []string
	for _, first := range "abcdefghijklmnopqrstuvwxyz" { // more than there are words of one letter
		body = append(body, `{"name":"`+string(first)+`"},{"name":"`+string(first)+`"}`)
	}
	different := make(map[string]bool)
	got := names("[" + strings.Join(body, ",") + "]")
	for i, name := range got {
		if different[name] = true; got[i/2*2] != name {
			t.Errorf("one name became %q and %q", got[i/2*2], name)
		}
	}
	if len(different) != 26 {
		t.Errorf("26 names became %d", len(different))
	}
}
