package pd

import (
	"testing"

	"github.com/tandem-gateway/tandem/pools"
)

// A connector that the configuration accepts and nothing implements would be a nil
// pointer in a request.
func TestConnectors_AreThoseOfTheConfiguration(t *testing.T) {
	for _, name := range pools.Connectors() {
		if c := connectors[name]; c == nil || c.pairs != (c.decode != nil) || c.pairs && !c.carried && c.prefill == nil {
			t.Errorf("%s is not complete: %+v", name, c)
		}
	}
	if len(connectors) != len(pools.Connectors()) {
		t.Errorf("%d connectors, the configuration knows %v", len(connectors), pools.Connectors())
	}
}
