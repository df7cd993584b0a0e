package pd

import "testing"

func TestEngineIDs_ServersThatAreGoneAreForgotten(t *testing.T) {
	f := newTestFleet(t, 2, testPrompt(1000))
	servers := f.Fleet.Servers()
	var ids engineIDs
	for _, server := range []string{"gone", servers[0].ID(), servers[1].ID()} {
		ids.remember(server, knownEngines{life: 1}, servers)
	}
	if _, there := ids.servers["gone"]; there || len(ids.servers) != 2 {
		t.Errorf("remembered: %v", ids.servers)
	}
}
