package messages

import (
	"slices"

	"github.com/tandem-gateway/tandem/pd/api"
)

// chatOfOutput is what a message asks of its answer, in a chat's words.
type chatOfOutput struct {
	format []api.Edit // of the request
	effort []api.Edit // of the template's variables
}

// efforts are those that SGLang takes, by what it makes of them (0.5.23, AnthropicOutputConfig).
var efforts = map[string]string{"minimal": "minimal", "low": "low", "medium": "medium", "high": "high", "xhigh": "max", "max": "max"}

// chatOutput translates output_config, and output_format, which was the schema's name before. SGLang reads the schema of
// output_config since 0.5.22, and of chats in every version; a task_budget it only logs. The effort is a variable of
// the template as long as it is not a chat's reasoning_effort, which switches thinking on besides
// (openai/protocol.py, normalize_reasoning_inputs; openai/serving_chat.py, _convert_to_internal_request).
func chatOutput(request api.Body, engine Engine) (out chatOfOutput, err error) {
	config, format := request.Get("output_config"), request.Get("output_format")
	if config.Null() && format.Null() {
		return out, nil
	}
	if engine.Name != SGLang {
		return out, inexact("a schema or an effort of the answer (output_config), which not every version of vLLM follows")
	}
	if !config.Null() {
		c, ok := config.Object()
		if !ok {
			return out, inexact("output_config must be an object in which no field appears twice")
		}
		if err := onlyFields(c, "output_config", "effort", "format", "task_budget"); err != nil {
			return out, err
		}
		if out.effort, err = chatEffort(c.Get("effort")); err != nil {
			return out, err
		}
		switch inner := c.Get("format"); {
		case !inner.Null() && !format.Null():
			return out, inexact("two schemas of the answer, in output_config and output_format")
		case !inner.Null():
			format = inner
		}
	}
	out.format, err = chatFormat(format)
	return out, err
}

func chatEffort(value api.Value) ([]api.Edit, error) {
	if value.Null() {
		return nil, nil
	}
	said, _ := value.String()
	effort, known := efforts[said]
	if !known {
		return nil, inexact("the effort of output_config")
	}
	return []api.Edit{{Key: "reasoning_effort", Value: quote(effort)}}, nil
}

// chatFormat is response_format as SGLang makes it of a message's.
func chatFormat(value api.Value) ([]api.Edit, error) {
	if value.Null() {
		return nil, nil
	}
	f, ok := value.Object()
	if !ok {
		return nil, inexact("the format of the answer must be an object in which no field appears twice")
	}
	if err := onlyFields(f, "the format of the answer", "type", "schema"); err != nil {
		return nil, err
	}
	kind, _ := f.Get("type").String()
	schema := f.Get("schema")
	if kind != "json_schema" || !isObject(schema) {
		return nil, inexact("a format of the answer that is not a json_schema with a schema")
	}
	named := api.Body{}.With(api.Edit{Key: "name", Value: []byte(`"response"`)}, api.Edit{Key: "schema", Value: slices.Clone(schema)}, api.Edit{Key: "strict", Value: []byte("true")})
	return []api.Edit{{Key: "response_format", Value: api.Body{}.With(api.Edit{Key: "type", Value: f.Get("type")}, api.Edit{Key: "json_schema", Value: named.Bytes()}).Bytes()}}, nil
}
