package enginehttp

import (
	"bytes"
	"errors"
	"io"
	"net/http"
)

// MaxAnswer bounds an answer that is read whole, in bytes.
const MaxAnswer = 64 << 20

var ErrAnswerTooLong = errors.New("the answer is longer than 64 MiB")

// ReadAnswer reads a whole answer, up to MaxAnswer. Room is made at once for as much as a usual one announces.
func ReadAnswer(resp *http.Response) ([]byte, error) {
	const usual = 1 << 20
	var body bytes.Buffer
	if n := resp.ContentLength; n > 0 && n <= usual {
		body.Grow(int(n) + bytes.MinRead)
	}
	_, err := body.ReadFrom(io.LimitReader(resp.Body, MaxAnswer+1))
	if err == nil && body.Len() > MaxAnswer {
		return nil, ErrAnswerTooLong
	}
	return body.Bytes(), err
}
