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

// ReadAnswer reads a whole answer, up to MaxAnswer. Room is made at once for as much as a usual one announces,
// and for little more.
func ReadAnswer(resp *http.Response) ([]byte, error) {
	const usual, first = 1 << 20, 1 << 10
	room := first
	if n := resp.ContentLength; n > 0 && n <= usual {
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
		case len(answer) == cap(answer):
			answer = slices.Grow(answer, min(len(answer), MaxAnswer))
		}
	}
}
