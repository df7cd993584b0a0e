package tokens

// AnswerIDs finds the prompt's token ids in an engine's answer to a request with
// return_token_ids: at the top, or in the first choice. It is false where there are
// none, as with engines that do not know the field.
func AnswerIDs(answer []byte) (ids []uint32, ok bool) {
	var found, choices []byte
	if !members(answer, func(key, value []byte) {
		switch string(key) {
		case "prompt_token_ids":
			found = value
		case "choices":
			choices = value
		}
	}) {
		return nil, false
	}
	if !present(found) {
		first := true
		elements(choices, func(choice []byte) {
			if !first {
				return
			}
			first = false
			members(choice, func(key, value []byte) {
				if string(key) == "prompt_token_ids" {
					found = value
				}
			})
		})
	}
	if !present(found) {
		return nil, false
	}
	return parseIDs(found)
}
