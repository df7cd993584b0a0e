package answerkv

import "testing"

func TestReading_String(t *testing.T) {
	for want, outcome := range map[string]Outcome{
		"":                              "",
		"prefill read 64 tokens from d": Read,
		"prefill computed, since 64 tokens on d were gone when they were to be read": Late,
		"prefill was to read 64 tokens from d, and computed some of them":            Computed,
		"prefill was to read 64 tokens from d, failed, and computed them":            Failed,
	} {
		if got := (Reading{"d", 64, outcome}).String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
