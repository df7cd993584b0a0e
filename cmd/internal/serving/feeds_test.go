package serving

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/kvstate/zmqsub"
)

// Two engines on one host and one port for all: both would be believed to hold what one of them does.
func TestFeeds_ServersWithOneAddressAreWarnedOfOnce(t *testing.T) {
	var out strings.Builder
	f := &feeds{log: slog.New(slog.NewTextHandler(&out, nil)), same: map[string]string{}}
	at := func(server, address string, binds bool) feedSpec {
		return feedSpec{id: kvstate.SourceID{Server: server}, feed: zmqsub.Feed{Events: address, Bind: binds}}
	}
	for i, c := range []struct {
		wanted []feedSpec
		warned string
	}{
		{[]feedSpec{at("a", "tcp://h:1", false), at("b", "tcp://h:2", false)}, ""},
		{[]feedSpec{at("a", "tcp://h:1", false), at("b", "tcp://h:1", false)}, `servers="a, b"`},
		{[]feedSpec{at("a", "tcp://h:1", false), at("b", "tcp://h:1", false)}, ""},
		{[]feedSpec{at("a", "tcp://h:1", false), at("b", "tcp://h:2", false)}, ""},
		{[]feedSpec{at("a", "tcp://h:1", false), at("b", "tcp://h:1", false), at("c", "tcp://h:1", false)}, `servers="a, b, c"`},
		{[]feedSpec{at("d", "tcp://*:1", true), at("e", "tcp://*:1", true)}, ""}, // they come to us
	} {
		wanted := make(map[kvstate.SourceID]feedSpec)
		for _, w := range c.wanted {
			wanted[w.id] = w
		}
		out.Reset()
		f.warnOfSame(wanted)
		if said := out.String(); !strings.Contains(said, c.warned) || (c.warned == "") != (said == "") {
			t.Errorf("step %d: %q, want %q", i, said, c.warned)
		}
	}
}
