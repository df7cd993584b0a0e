package connector

import (
	"testing"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
)

func TestKeepsSalt(t *testing.T) {
	for version, want := range map[string]bool{"0.32.0": true, "v0.32.1rc1+cu130": true, "1.0.0": true, "0.33": true,
		"0.31.0+x": false, "0.9.2": false, "": false, "0": false, "main": false, "0.x.1": false} {
		if got := KeepsSalt(api.Messages, pools.Identity{Engine: "vllm", Version: version}); got != want {
			t.Errorf("vLLM %q: %v", version, got)
		}
	}
}

// Other engines keep the prompts of some APIs apart: TensorRT-LLM those of chat, SGLang and what is not
// known all but messages.
func TestKeepsSalt_OfOtherEngines(t *testing.T) {
	for engine, keeps := range map[string]map[*api.Dialect]bool{
		"trtllm": {api.Chat: true, api.Completions: false, api.Messages: false},
		"sglang": {api.Chat: true, api.Completions: true, api.Messages: false},
		"":       {api.Chat: true, api.Messages: false},
	} {
		for d, want := range keeps {
			if got := KeepsSalt(d, pools.Identity{Engine: engine}); got != want {
				t.Errorf("%q, %s: %v", engine, d.Name, got)
			}
		}
	}
}
