package pd

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
