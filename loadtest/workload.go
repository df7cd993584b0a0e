package loadtest

import "time"

// A message is one entry of a chat history.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// A turn is one request before it is written as a body: what was said, the
// question, and how long the answer may be. Its text is written out by the
// goroutine that sends it, never by the one that keeps the arrival times.
type turn struct {
	talk         *conversation // nil: nothing follows the answer
	question     passage
	outputTokens int

	// promptTokens is the length of the whole prompt and repeated how much of its
	// beginning was in an earlier prompt that has been answered, both by the workload's
	// own count: what a cache that forgets nothing would have of it.
	promptTokens, repeated int
}

// messages returns the whole chat history with the question as its last entry.
func (t turn) messages(wordsPerToken float64) []message {
	question := message{Role: "user", Content: string(t.question.appendText(nil, wordsPerToken))}
	if t.talk == nil {
		return []message{question}
	}
	return append(t.talk.history[:len(t.talk.history):len(t.talk.history)], question)
}

// A workload says what is asked when an arrival is due. Both methods may be
// called from several goroutines.
type workload interface {
	// next returns the request of the next arrival.
	next(now time.Time) turn
	// answered tells that t, whose whole history was asked, was answered well, so
	// that its conversation may go on.
	answered(t turn, asked []message, o *outcome, now time.Time)
}
