package main

import (
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/proxybench"
)

// A part of a name that no proxy has is a slip of the pen: the run would measure nginx alone, for minutes.
func TestBenchProxy_OnlyNamesProxiesThatThereAre(t *testing.T) {
	cfg := proxybench.Default()
	opts := benchProxyOptions{only: []string{"tandem, one", "nosuch"}}
	if _, err := opts.proxies(&cfg); err == nil || !strings.Contains(err.Error(), `"nosuch"`) || !strings.Contains(err.Error(), "HAProxy") {
		t.Errorf("%v", err)
	}
	opts.only = opts.only[:1]
	chosen, err := opts.proxies(&cfg)
	var names []string
	for _, p := range chosen {
		names = append(names, p.Name)
	}
	if want := "direct|nginx|tandem, one leg"; err != nil || strings.Join(names, "|") != want {
		t.Errorf("%v: %q, want %s", err, names, want)
	}
}
