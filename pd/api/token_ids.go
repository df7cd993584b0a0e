package api

import (
	"slices"

	"github.com/tandem-gateway/tandem/kvstate/jsonscan"
)

// TokenIDsField is the wish for the token ids of prompt and answer, in requests to vLLM of chat and completions.
const TokenIDsField = "return_token_ids"

// AsksForIDs reports whether a request wishes for token ids.
func AsksForIDs(body Body) bool {
	asks, _ := body.Get(TokenIDsField).Bool()
	return asks
}

// AskForIDs returns the request with the wish for token ids.
func AskForIDs(body Body) Body { return body.With(Set(TokenIDsField, []byte("true"))) }

// CompactIDs returns ids that commas part without the white space between them. It is false where they are none, or
// not whole numbers as JSON has them.
func CompactIDs(list []byte) (compact []byte, ok bool) {
	if jsonscan.NumbersLength(list) == len(list) { // as engines mostly send them
		return list, len(list) > 0
	}
	if jsonscan.Check(slices.Concat([]byte{'['}, list, []byte{']'})) != nil {
		return nil, false
	}
	for _, c := range list {
		if c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			compact = append(compact, c)
		}
	}
	return compact, len(compact) > 0 && jsonscan.NumbersLength(compact) == len(compact)
}
