package connector

import (
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/pd/api"
)

// The leg of a piece may be sent when the memory of the client's text is another request's already: it has none of it.
func TestPieceBody_ConsistsOfCopies(t *testing.T) {
	text := []byte(`{"model":"m","messages":[{"role":"user","content":"hi"}],"cache_salt":"` + strings.Repeat("s", 5000) + `","priority":-7}`)
	request, err := api.ParseBody(text)
	if err != nil {
		t.Fatal(err)
	}
	piece := PieceBody(request, []uint32{1, 2, 3})
	want := string(piece.Bytes())
	for i := range text {
		text[i] = 0xDD
	}
	if got := string(piece.Bytes()); got != want || !strings.Contains(got, `"priority":-7`) {
		t.Errorf("once the request's memory is another's: %.300q", got)
	}
}
