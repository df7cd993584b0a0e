package serving

import (
	"slices"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/kvstate/zmqsub"
	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/process"
	"github.com/tandem-gateway/tandem/loadtest/testlog"
	"github.com/tandem-gateway/tandem/pools"
)

// Two engines on one host and one port for all: both would be believed to hold what one of them does.
func TestFeeds_AServerAtTheAddressOfAnotherIsFound(t *testing.T) {
	at := func(server, address string, binds bool) feedSpec {
		return feedSpec{id: kvstate.SourceID{Server: server}, feed: zmqsub.Feed{Events: address, Bind: binds}}
	}
	for name, c := range map[string]struct {
		open []feedSpec
		want feedSpec
		also string
	}{
		"no other":        {nil, at("a", "tcp://h:1", false), ""},
		"another port":    {[]feedSpec{at("a", "tcp://h:1", false)}, at("b", "tcp://h:2", false), ""},
		"the same port":   {[]feedSpec{at("a", "tcp://h:1", false)}, at("b", "tcp://h:1", false), "a"},
		"a third":         {[]feedSpec{at("a", "tcp://h:2", false), at("b", "tcp://h:1", false)}, at("c", "tcp://h:1", false), "b"},
		"itself":          {[]feedSpec{at("a", "tcp://h:1", false)}, at("a", "tcp://h:1", false), ""},
		"both come to us": {[]feedSpec{at("d", "tcp://*:1", true)}, at("e", "tcp://*:1", true), ""},
	} {
		f := &feeds{open: map[kvstate.SourceID]*feed{}}
		for _, o := range c.open {
			f.open[o.id] = &feed{want: o}
		}
		if got := f.alsoAt(c.want); got != c.also {
			t.Errorf("%s: %q, want %q", name, got, c.also)
		}
	}
}

// Whoever binds any port has one of its own; ranks of one server have ports in a row.
func TestBoundAlike(t *testing.T) {
	wanted := make(map[kvstate.SourceID]feedSpec)
	for server, at := range map[string]zmqsub.Feed{
		"a": {Events: "tcp://*:1", Bind: true}, "b": {Events: "tcp://*:1", Bind: true}, "c": {Events: "tcp://*:2", Bind: true},
		"d": {Events: "tcp://*:*", Bind: true}, "e": {Events: "tcp://*:*", Bind: true}, "f": {Events: "tcp://*:0", Bind: true},
		"g": {Events: "tcp://*:0", Bind: true}, "h": {Events: "tcp://h:1"}, "i": {Events: "tcp://h:1"},
	} {
		id := kvstate.SourceID{Server: server}
		wanted[id] = feedSpec{id: id, feed: at}
	}
	a, b := kvstate.SourceID{Server: "a"}, kvstate.SourceID{Server: "b"}
	if got := boundAlike(wanted); len(got) != 2 || got[a] != "b" || got[b] != "a" {
		t.Errorf("%v", got)
	}
}

// Each rank of an engine publishes at an address of its own, in whichever way it is to be listened to.
func TestFeedsOf_EachRankHasItsOwn(t *testing.T) {
	feeds := feedsOf(pools.Published{Events: "tcp://10.0.0.1:5557", Replay: "tcp://10.0.0.1:5657", Topic: "kv", Bind: true, Ranks: 2})
	want := []zmqsub.Feed{
		{Events: "tcp://10.0.0.1:5557", Replay: "tcp://10.0.0.1:5657", Topic: "kv", Bind: true},
		{Events: "tcp://10.0.0.1:5558", Replay: "tcp://10.0.0.1:5658", Topic: "kv", Bind: true},
	}
	if !slices.Equal(feeds, want) {
		t.Errorf("%+v, want %+v", feeds, want)
	}
}

// Engines in connect mode that come to one address cannot be told apart there: what they say is believed
// of neither, which is said once, and tandem check refuses it.
func TestFeeds_EnginesThatConnectToOneAddressAreNotListenedTo(t *testing.T) {
	t.Parallel()
	free, err := process.FreeAddresses(1)
	if err != nil {
		t.Fatal(err)
	}
	one := "tcp://" + free[0]
	connecting := func(cfg *engine.Config) { cfg.EventsEndpoint = one }
	engines := []*engine.Engine{startTestEngine(t, engine.RoleBoth, connecting), startTestEngine(t, engine.RoleBoth, connecting)}
	bound := func(cfg *config) {
		for _, e := range engines {
			cfg.servers[2].add(serverEntry{URL: e.URL(), Events: one, EventBind: true})
		}
	}
	if fault, _ := checked(t, bound); !strings.Contains(fault, one) || strings.Count(fault, oneBoundAddress) != 1 {
		t.Errorf("check says %q", fault)
	}
	var log testlog.Buffer
	c := newCluster(t, shape{log: &log, config: bound})
	eventually(t, "both are up", func() bool { return c.metric("tandem_server_up") == 2 })
	eventually(t, "it is said of both", func() bool { return strings.Count(log.String(), oneBoundAddress) == 2 })
	for _, s := range c.node.locality.Index.Sources() {
		t.Errorf("%s is listened to", s.Server)
	}
}
