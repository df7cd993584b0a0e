package connector

import (
	"testing"

	"github.com/tandem-gateway/tandem/pools"
)

func TestEngineIDs_ServersThatAreGoneAreForgotten(t *testing.T) {
	here := identified(t, "mooncake", pools.Identity{}, pools.Identity{})
	var ids EngineIDs
	for _, id := range []string{"gone", here[0].ID(), here[1].ID()} {
		ids.remember(id, knownEngines{life: 1}, here)
	}
	if _, there := ids.servers["gone"]; there || len(ids.servers) != 2 {
		t.Errorf("remembered: %v", ids.servers)
	}
}
