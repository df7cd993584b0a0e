package pd

import "testing"

// What the gateway withholds is no sign that the server died.
func TestWithheld_IsNoLostConnection(t *testing.T) {
	t.Parallel()
	if (&LegError{Leg: PrefillLeg, Kind: Broken, Err: errForeignHost}).lostConnection() {
		t.Error("it is taken for one")
	}
}
