package tokens

import "github.com/tandem-gateway/tandem/kvstate/jsonscan"

// AnswerIDs finds the prompt's token ids in an engine's answer to a request with
// return_token_ids: at the top, or in the first choice. It is false where there are
// none, as with engines that do not know the field.
func AnswerIDs(answer []byte) (ids []uint32, ok bool) {
	var found, choices []byte
	for m, err := range jsonscan.Members(answer) {
		if err != nil {
			return nil, false
		}
		switch string(m.Key) {
		case "prompt_token_ids":
			found = m.Value
		case "choices":
			choices = m.Value
		}
	}
	if !present(found) {
		found = memberOf(firstOf(choices), "prompt_token_ids")
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
