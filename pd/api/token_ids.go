package api

// TokenIDsField is the wish for the token ids of prompt and answer, in requests to vLLM of chat and completions.
const TokenIDsField = "return_token_ids"

// AsksForIDs reports whether a request wishes for token ids.
func AsksForIDs(body Body) bool {
	asks, _ := body.Get(TokenIDsField).Bool()
	return asks
}

// AskForIDs returns the request with the wish for token ids.
func AskForIDs(body Body) Body { return body.With(Set(TokenIDsField, []byte("true"))) }
