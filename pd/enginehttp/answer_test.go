package enginehttp

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// An answer is read whole, whatever length it announces.
func TestReadAnswer_TakesWhatComes(t *testing.T) {
	for _, length := range []int64{-1, 0, 5, 500, 2 << 20} {
		got, err := ReadAnswer(&http.Response{ContentLength: length, Body: io.NopCloser(strings.NewReader("hello"))})
		if err != nil || string(got) != "hello" {
			t.Errorf("announced as %d: %q, %v", length, got, err)
		}
	}
}
