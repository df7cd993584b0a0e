package serving

import "testing"

// Each value that shells offer is one that the setting takes.
func TestChoices_AreValid(t *testing.T) {
	for name, values := range choices() {
		for _, value := range values {
			settings := map[string]string{"prefill": "http://192.0.2.1:1", "decode": "http://192.0.2.2:1", name: value}
			if name == "policy" {
				settings["binding"] = "arrival"
			}
			if _, err := configWith(settings, nil); err != nil {
				t.Errorf("--%s %s: %v", name, value, err)
			}
		}
	}
}
