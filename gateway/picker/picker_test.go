package picker

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

const chatPath = "/v1/chat/completions"

// chatOf is a chat with a prompt of so many bytes, long enough for a pair from some thousands on.
func chatOf(bytes int, more string) []byte {
	return []byte(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("word ", bytes/5) + `"}],"max_tokens":8` + more + `}`)
}

// A request goes to the decode server that was chosen for it, whose sidecar is told which prefill
// server to call, and its answer comes back to the byte; what it held is given back.
func TestPicker_APairServesARequest(t *testing.T) {
	for _, stream := range []bool{false, true} {
		f := newPicker(t, setup{prefill: 2, decode: 2, config: Config{Fallbacks: 2}})
		p := f.open()
		p.request(chatPath, chatOf(8_000, `,"stream":`+strconv.FormatBool(stream)))
		to := p.routing()
		if to.refused != nil {
			t.Fatalf("refused: %s", to.refused.GetBody())
		}
		if len(to.addresses) != 2 || to.header.Get("X-Prefiller-Host-Port") == "" || slices.Contains(to.addresses, to.header.Get("X-Prefiller-Host-Port")) {
			t.Errorf("it goes to %v, prefill is %q", to.addresses, to.header.Get("X-Prefiller-Host-Port"))
		}
		resp := p.forward(to, chatPath)
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("status %d", resp.StatusCode)
		}
		got := string(p.answer(resp, 100))
		if !stream && gjson.Get(got, "choices.0.message.content").String() == "" {
			t.Errorf("the client gets %q", got)
		}
		if stream && (!strings.HasSuffix(got, "data: [DONE]\n\n") || strings.Contains(got, `"usage":{`)) {
			t.Errorf("the client gets %q", got)
		}
		f.nothingHeld()
		prefills := 0
		for _, e := range f.prefill {
			prefills += e.State().HandoffsPulled
		}
		if prefills != 1 {
			t.Errorf("%d prompts were prefilled", prefills)
		}
	}
}
