package gateway

import (
	"net/http"
	"strings"

	"github.com/tandem-gateway/tandem/pd/api"
)

var errNotFound = &badRequest{status: http.StatusNotFound, code: "not_found", message: "There is nothing at this path."}

// notFound is errNotFound, with what the client may use instead where that can be told from the path.
func notFound(path string) *badRequest {
	hint := insteadOf(path)
	if path == api.Generate.Path { // else it would have been found
		hint = "No server here is set to speak SGLang's own API (native: true): use POST /v1/completions or POST /v1/chat/completions."
	}
	if meant := meantPath(path); meant != "" {
		hint = "Did you mean " + meant + "?"
	}
	if hint == "" {
		return errNotFound
	}
	return &badRequest{status: errNotFound.status, code: errNotFound.code, message: errNotFound.message + " " + hint}
}

// meantPath is the path of an API that was most likely meant, "" where none was: SDKs append theirs to
// a base URL that lacks /v1, repeats it, or ends in a slash.
func meantPath(path string) string {
	if meant := "/v1" + belowV1(path); dialectAt[meant] != nil || meant == "/v1/models" {
		return meant
	}
	return ""
}

// belowV1 is a path without /v1 before it, nor slashes that are too many.
func belowV1(path string) string {
	rest := strings.TrimRight(path, "/")
	for strings.Contains(rest, "//") {
		rest = strings.ReplaceAll(rest, "//", "/")
	}
	for strings.HasPrefix(rest, "/v1/") {
		rest = strings.TrimPrefix(rest, "/v1")
	}
	return rest
}

// What clients may use instead of several APIs.
const (
	insteadOfState   = "Send the whole conversation with each request to POST /v1/chat/completions or POST /v1/responses."
	insteadOfFiles   = "Files are not kept here: put texts and images into the requests themselves."
	insteadOfBatches = "Batches are not run here: send each request by itself."
	insteadOfSounds  = "Only text and embeddings are made here, not images, sounds, videos or transcripts."
	insteadOfCaches  = "Caches are not emptied through the gateway: ask each engine."
	insteadOfOthers  = "Use OpenAI's API (POST /v1/chat/completions) or Anthropic's (POST /v1/messages)."
)

// notServed are the paths below /v1 of APIs that clients and benchmarks know and that are not served here, and what is instead of them.
var notServed = []struct{ path, instead string }{
	{"/files", insteadOfFiles},
	{"/uploads", insteadOfFiles},
	{"/batches", insteadOfBatches},
	{"/messages/batches", insteadOfBatches},
	{"/assistants", "Assistants are not kept here. " + insteadOfState},
	{"/threads", "Threads are not kept here. " + insteadOfState},
	{"/conversations", "Conversations are not kept here. " + insteadOfState},
	{"/chat/completions", "Completions are not kept here, whatever their store said: each is gone when it has been answered."},
	{"/vector_stores", "Vector stores are not kept here: POST /v1/embeddings makes embeddings where the model can."},
	{"/images", insteadOfSounds},
	{"/audio", insteadOfSounds},
	{"/videos", insteadOfSounds},
	{"/realtime", `There are no WebSockets here: send "stream": true to POST /v1/chat/completions or POST /v1/responses.`},
	{"/moderations", "There are no moderations here: POST /v1/classify classifies texts where the model can."},
	{"/fine_tuning", "Models are not trained here."},
	{"/fine-tunes", "Models are not trained here."},
	{"/complete", "Use POST /v1/messages instead of Anthropic's Text Completions."},
	{"/openai/deployments", "Azure's paths are not served here: use OpenAI's own client with a base URL that ends in /v1."},
	{"/api/chat", "Ollama's API is not served here. " + insteadOfOthers},
	{"/api/generate", "Ollama's API is not served here. " + insteadOfOthers},
	{"/api/tags", "Ollama's API is not served here. " + insteadOfOthers},
	{"/flush_cache", insteadOfCaches},
	{"/reset_prefix_cache", insteadOfCaches},
	{"/tokenizer_info", "Tokenizers are not described here: name the model's own, as tokenizer_backend=huggingface of lm-evaluation-harness does, or ask POST /tokenize and POST /detokenize."},
	{"/metrics", "The gateway's metrics are at its admin port, and each engine has its own."},
	{"/generate_stream", "Text Generation Inference's API is not served here: use POST /v1/completions or POST /v1/chat/completions."},
	{"/embed", "Text Embeddings Inference's API is not served here: use POST /v1/embeddings."},
	{"/v1beta/models", "Gemini's API is not served here. " + insteadOfOthers},
}

// insteadOf is what a client may use instead of an API that is not served here, "" where the path is none's.
func insteadOf(path string) string {
	rest := belowV1(path)
	if rest == "" || rest == "/v1" { // clients of Hugging Face's servers ask at the URL that they are given
		return insteadOfOthers
	}
	for _, a := range notServed {
		if below, found := strings.CutPrefix(rest, a.path); found && (below == "" || below[0] == '/') {
			return a.instead
		}
	}
	return ""
}
