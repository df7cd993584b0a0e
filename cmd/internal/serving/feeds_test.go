package serving

import (
	"slices"
	"testing"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/kvstate/zmqsub"
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
