package enginehttp

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
)

// An answer is read whole, whatever length it announces.
func TestReadAnswer_TakesWhatComes(t *testing.T) {
	for _, length := range []int64{-1, 0, 5, 500, 2 << 20} {
		got, err := ReadAnswer(&http.Response{ContentLength: length, Body: io.NopCloser(strings.NewReader("hello"))}, new(HeldAnswer))
		if err != nil || string(got) != "hello" {
			t.Errorf("announced as %d: %q, %v", length, got, err)
		}
	}
}

// Room is made for what a usual answer announces, at once, and for no more than is there of others.
func TestReadAnswer_MakesRoomForWhatIsUsual(t *testing.T) {
	for announced, most := range map[int64]int{-1: 2 << 10, 0: 2 << 10, 1: 1 << 10, 5000: 6 << 10, 1 << 20: 2 << 20, 1<<20 + 1: 2 << 10, 1 << 40: 2 << 10} {
		got, err := ReadAnswer(&http.Response{ContentLength: announced, Body: io.NopCloser(strings.NewReader("hello"))}, new(HeldAnswer))
		least := 0
		if announced > 1 && announced <= 1<<20 {
			least = int(announced)
		}
		if err != nil || cap(got) > most || cap(got) < least {
			t.Errorf("announced as %d: room for %d bytes, %v", announced, cap(got), err)
		}
	}
}

// An answer is as long as it may be or refused, and one that breaks off is an error.
func TestReadAnswer_IsBounded(t *testing.T) {
	for length, want := range map[int64]error{MaxAnswer: nil, MaxAnswer + 1: ErrAnswerTooLong} {
		got, err := ReadAnswer(&http.Response{ContentLength: -1, Body: io.NopCloser(io.LimitReader(zeros{}, length))}, new(HeldAnswer))
		if !errors.Is(err, want) || err == nil && int64(len(got)) != length {
			t.Errorf("%d bytes: %d, %v", length, len(got), err)
		}
	}
	cut := io.MultiReader(strings.NewReader("hel"), iotest.ErrReader(io.ErrUnexpectedEOF))
	if _, err := ReadAnswer(&http.Response{ContentLength: 5, Body: io.NopCloser(cut)}, new(HeldAnswer)); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut: %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
