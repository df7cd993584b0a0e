package pd

import "testing"

// Where requests do not wait for unresponsive servers, those that are up are still of use.
func TestReady_WithoutAWaitForUnresponsiveServers(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(100))
	f.Binder.Config.UnresponsiveWait = 0
	if ready, why := f.Ready(); !ready {
		t.Errorf("all servers are up: %s", why)
	}
}
