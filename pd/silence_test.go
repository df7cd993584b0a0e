package pd

import (
	"testing"

	"github.com/tandem-gateway/tandem/pd/api"
)

// An answer without tools, or whose tools are not called, says each token.
func TestSilence_OfWhatMayCallTools(t *testing.T) {
	for fields, want := range map[string]bool{
		`"a":1`: false, `"tools":null`: false, `"tools":[]`: false, `"tools":[{}],"tool_choice":"none"`: false,
		`"tools":[{}]`: true, `"tools":[{}],"tool_choice":"auto"`: true, `"tools":[{}],"tool_choice":{"type":"any"}`: true,
		`"include_reasoning":false`: true, `"include_reasoning":true`: false, `"stream_reasoning":false`: true,
	} {
		body, err := api.ParseBody([]byte("{" + fields + "}"))
		if got := mayBeSilent(body); err != nil || got != want {
			t.Errorf("%s: %v, %v", fields, got, err)
		}
	}
}
