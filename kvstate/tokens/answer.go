package tokens

import "github.com/tandem-gateway/tandem/kvstate/jsonscan"

// AnswerIDs finds the prompt's token ids in an engine's answer, of which member gives what is at a key, to a request
// that asks for them:
// with return_token_ids at the top, or in the first choice; of /v1/responses, with
// enable_response_messages, in the first of its input_messages, which is all of the prompt (vLLM
// 0.32 entrypoints/openai/responses/context.py, SimpleContext.append_output; gpt-oss models have
// messages without tokens there). It is false where there are none, as with engines that do not
// know the field.
func AnswerIDs(member func(key string) []byte) (ids []uint32, ok bool) {
	found := member("prompt_token_ids")
	if !present(found) {
		found = memberOf(firstOf(member("choices")), "prompt_token_ids")
	}
	if !present(found) {
		found = memberOf(firstOf(member("input_messages")), "tokens")
	}
	if !present(found) {
		return nil, false
	}
	return parseIDs(found)
}

// firstOf is the first element of an array, nil where there is none.
func firstOf(array []byte) []byte {
	for element, err := range jsonscan.Elements(array) {
		if err == nil {
			return element
		}
	}
	return nil
}

// memberOf is the value of an object's member, nil where there is none.
func memberOf(object []byte, key string) (value []byte) {
	for m, err := range jsonscan.Members(object) {
		if err == nil && string(m.Key) == key {
			value = m.Value
		}
	}
	return value
}
