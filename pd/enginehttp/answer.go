package enginehttp

import (
	"errors"
	"io"
	"net/http"
	"slices"
)

// MaxAnswer bounds an answer that is read whole, in bytes.
const MaxAnswer = 64 << 20

var ErrAnswerTooLong = errors.New("the answer is longer than 64 MiB")

// usualAnswer is the memory that any answer may take without being counted, in bytes: it comes in however many long
// ones do.
const usualAnswer = 1 << 20

// ReadAnswer reads a whole answer, up to MaxAnswer and to what the budget of held has left. Room is made at once for as
// much as a usual one announces, and for little more.
func ReadAnswer(resp *http.Response, held *HeldAnswer) ([]byte, error) {
	const first = 1 << 10
	room := first
	if n := resp.ContentLength; n > 0 && n <= usualAnswer {
		room = int(n) + 1 // in which the end is read
	}
	answer := make([]byte, 0, room)
	for {
		n, err := resp.Body.Read(answer[len(answer):cap(answer)])
		answer = answer[:len(answer)+n]
		switch {
		case len(answer) > MaxAnswer:
			return nil, ErrAnswerTooLong
		case errors.Is(err, io.EOF):
			return answer, nil
		case err != nil:
			return answer, err
		case len(answer) == cap(answer) && !held.grow(min(2*len(answer), MaxAnswer)):
			return nil, ErrAnswersHeld
		case len(answer) == cap(answer):
			answer = slices.Grow(answer, min(len(answer), MaxAnswer))
		}
	}
}
