package engine

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// transformersFields are what Hugging Face's transformers serve takes on each path, beside what the
// openai package of Python has for it (5.19.0, cli/serving/{chat_completion,completion,response}.py,
// each _valid_params_class; the lists are those with openai 3.57). All else is refused.
var transformersFields = map[string]string{
	"/v1/chat/completions": "audio chat_template_kwargs frequency_penalty function_call functions generation_config logit_bias logprobs " +
		"max_completion_tokens max_tokens messages metadata modalities model moderation n parallel_tool_calls prediction presence_penalty " +
		"prompt_cache_key prompt_cache_options prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier " +
		"stop store stream stream_options temperature tool_choice tools top_logprobs top_p user verbosity web_search_options",
	"/v1/completions": "best_of echo frequency_penalty generation_config logit_bias logprobs max_tokens model n presence_penalty prompt seed " +
		"stop stream stream_options suffix temperature top_p user",
	"/v1/responses": "access_programs background background_options context_management conversation generation_config image include input " +
		"instructions max_output_tokens max_tool_calls metadata model moderation parallel_tool_calls previous_response_id prompt " +
		"prompt_cache_key prompt_cache_options prompt_cache_retention reasoning safety_identifier seed service_tier store stream " +
		"stream_options temperature text tool_choice tools top_logprobs top_p truncation user",
}

// asTransformers makes a request what transformers serve makes of it: fields that it does not know are
// refused (422, in FastAPI's shape), and a response is a stream unless stream is false
// (cli/serving/response.py, handle_request).
func (x *exchange) asTransformers() error {
	known, takesModel := transformersFields[x.r.URL.Path]
	if !takesModel {
		return nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(x.body, &fields); err != nil {
		return badRequest("", "Request body could not be read: %v", err)
	}
	for name := range fields {
		if !slices.Contains(strings.Fields(known), name) {
			return &routeError{http.StatusUnprocessableEntity, fmt.Sprintf("Unexpected fields in the request: {'%s'}", name)}
		}
	}
	if _, chosen := fields["stream"]; !chosen && x.r.URL.Path == "/v1/responses" {
		fields["stream"] = json.RawMessage("true")
		x.body, _ = json.Marshal(fields)
	}
	return nil
}

// transformersRoutes are those that transformers serve has too (cli/serving/server.py): no metrics, no
// version.
func transformersRoutes(routes map[string]route) map[string]route {
	maps.DeleteFunc(routes, func(pattern string, _ route) bool {
		_, path, _ := strings.Cut(pattern, " ")
		return transformersFields[path] == "" && pattern != "GET /v1/models" && pattern != "GET /health"
	})
	return routes
}
