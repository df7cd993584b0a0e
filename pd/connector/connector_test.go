package connector

import (
	"testing"

	"github.com/tandem-gateway/tandem/pools"
)

// A connector that the configuration accepts and nothing implements would be a nil
// pointer in a request.
func TestConnectors_AreThoseOfTheConfiguration(t *testing.T) {
	for _, name := range pools.Connectors() {
		if c := named(name); c == nil || c.Pairs != (c.decode != nil) || c.Pairs && !c.DecodeDriven && c.Prefill == nil {
			t.Errorf("%s is not complete: %+v", name, c)
		}
	}
	if len(byName) != len(pools.Connectors()) {
		t.Errorf("%d connectors, the configuration knows %v", len(byName), pools.Connectors())
	}
}
