package discovery

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/pools"
)

func ids(f *pools.Fleet) []string {
	var ids []string
	for _, s := range f.Servers() {
		ids = append(ids, s.ID())
	}
	return ids
}

func TestSources_TheFleetIsWhatAllOfThemKnow(t *testing.T) {
	f := newFleet(t)
	var log bytes.Buffer
	sources := NewSources(f, slog.New(slog.NewTextHandler(&log, nil)))
	a, b, c := spec("http://a:1", pools.Prefill), spec("http://b:1", pools.Decode), spec("http://c:1", pools.Decode)
	bElsewhere := b
	bElsewhere.Rack = "r7"
	for _, step := range []struct {
		source string
		specs  []pools.Spec
		want   []string
	}{
		{"configuration", []pools.Spec{a, b}, []string{"a:1", "b:1"}},
		{"kubernetes", []pools.Spec{bElsewhere, c}, []string{"a:1", "b:1", "c:1"}},
		{"kubernetes", []pools.Spec{bElsewhere}, []string{"a:1", "b:1"}},
		{"configuration", []pools.Spec{a}, []string{"a:1", "b:1"}},
		{"kubernetes", nil, []string{"a:1"}},
	} {
		if err := sources.Set(step.source, step.specs); err != nil {
			t.Fatal(err)
		}
		if got := ids(f); !slices.Equal(got, step.want) {
			t.Fatalf("%s said %v: fleet is %v, want %v", step.source, step.specs, got, step.want)
		}
		if step.source == "kubernetes" && len(step.specs) > 0 && f.Servers()[1].Rack != "" {
			t.Error("b is as the second source says")
		}
	}
	if n := strings.Count(log.String(), "server=b:1 first=configuration second=kubernetes"); n != 1 {
		t.Errorf("the server known twice was logged %d times:\n%s", n, log.String())
	}
}

func TestSources_AServerMovesToTheSourceThatStillKnowsIt(t *testing.T) {
	f := newFleet(t)
	sources := NewSources(f, slog.New(slog.DiscardHandler))
	labelled := spec("http://b:1", pools.Decode)
	labelled.Rack = "r7"
	for _, err := range []error{
		sources.Set("configuration", []pools.Spec{spec("http://b:1", pools.Decode)}),
		sources.Set("kubernetes", []pools.Spec{labelled}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	f.SetDrain("b:1", true) // what an operator said outlives sources
	if err := sources.Set("configuration", nil); err != nil {
		t.Fatal(err)
	}
	after := f.Servers()[0]
	if after.Rack != "r7" || !after.Drains() {
		t.Errorf("rack %q; state kept: %v", after.Rack, after.Drains())
	}
}

func TestSources_AnErrorChangesNothing(t *testing.T) {
	f := newFleet(t)
	sources := NewSources(f, slog.New(slog.DiscardHandler))
	if err := sources.Set("dns", []pools.Spec{spec("http://a:1", pools.Both)}); err != nil {
		t.Fatal(err)
	}
	err := sources.Set("dns", []pools.Spec{spec("ftp://a:1", pools.Both)})
	if err == nil || !strings.HasPrefix(err.Error(), "servers from dns: ") {
		t.Errorf("error %v", err)
	}
	if got := ids(f); !slices.Equal(got, []string{"a:1"}) {
		t.Errorf("fleet is %v", got)
	}
}

// A server that two sources know is said to be so when that begins, and not each time they report.
func TestSources_AServerKnownTwiceIsSaidOnce(t *testing.T) {
	var log bytes.Buffer
	sources := NewSources(newFleet(t), slog.New(slog.NewTextHandler(&log, nil)))
	both := []pools.Spec{spec("http://a:1", pools.Both)}
	for i, x := range []struct {
		source string
		specs  []pools.Spec
		said   int
	}{{"configuration", both, 0}, {"dns", both, 1}, {"dns", both, 1}, {"configuration", both, 1}, {"dns", nil, 1}, {"dns", both, 2}} {
		if err := sources.Set(x.source, x.specs); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(log.String(), "known from two sources"); n != x.said {
			t.Errorf("%d: said %d times, want %d", i, n, x.said)
		}
	}
}
