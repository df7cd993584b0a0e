package enginehttp

import (
	"errors"
	"io"
	"net/http"
)

// MaxAnswer bounds an answer that is read whole, in bytes.
const MaxAnswer = 64 << 20

var ErrAnswerTooLong = errors.New("the answer is longer than 64 MiB")

// usualAnswer is the memory that an answer may take without being counted, in bytes: it comes in however many long
// ones do. One that takes more is counted whole.
const usualAnswer = 1 << 20

// ReadAnswer reads a whole answer, up to MaxAnswer and to what the budget of held has left. Room is made at once for as
// much as a usual one announces, and for little more.
func ReadAnswer(resp *http.Response, held *HeldAnswer) ([]byte, error) {
	const first = 1 << 10
	room := first
	if n := resp.ContentLength; n > 0 && n <= usualAnswer {
		room = int(n) + 1 // in which the end is read
	}
	answer := held.Memory.take(room)
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
		case len(answer) == cap(answer):
			longer := min(2*len(answer), MaxAnswer+1) // in which one that is too long shows
			if !held.Grow(longer) {
				return nil, ErrAnswersHeld
			}
			answer = append(make([]byte, 0, longer), answer...)
		}
	}
}
