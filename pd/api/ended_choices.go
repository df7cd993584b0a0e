package api

// EndedChoices are the choices of a streamed answer that have ended. A stream of which all have is
// complete though its end marker is missing, as with Hugging Face's transformers serve.
type EndedChoices struct {
	asked int
	ended map[int]bool
}

// NewEndedChoices are none yet, of so many that were asked for; of one where that is not said.
func NewEndedChoices(asked int) EndedChoices { return EndedChoices{asked: max(1, asked)} }

// Note notes which have ended. Others than those that were asked for do not count.
func (e *EndedChoices) Note(choices []int) {
	for _, c := range choices {
		if c < 0 || c >= e.asked {
			continue
		}
		if e.ended == nil {
			e.ended = make(map[int]bool)
		}
		e.ended[c] = true
	}
}

// All reports whether all have.
func (e *EndedChoices) All() bool { return len(e.ended) == e.asked }
