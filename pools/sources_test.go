package pools

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
)

func ids(f *Fleet) []string {
	var ids []string
	for _, s := range f.Servers() {
		ids = append(ids, s.ID())
	}
	return ids
}

func TestSources_TheFleetIsWhatAllOfThemKnow(t *testing.T) {
	f := newTestFleet(t)
	var log bytes.Buffer
	sources := NewSources(f, slog.New(slog.NewTextHandler(&log, nil)))
	a, b, c := spec("http://a:1", Prefill), spec("http://b:1", Decode), spec("http://c:1", Decode)
	bElsewhere := b
	bElsewhere.Rack = "r7"
	for _, step := range []struct {
		source string
		specs  []Spec
		want   []string
	}{
		{"configuration", []Spec{a, b}, []string{"a:1", "b:1"}},
		{"kubernetes", []Spec{bElsewhere, c}, []string{"a:1", "b:1", "c:1"}},
		{"kubernetes", []Spec{bElsewhere}, []string{"a:1", "b:1"}},
		{"configuration", []Spec{a}, []string{"a:1", "b:1"}},
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
	f := newTestFleet(t)
	sources := NewSources(f, slog.New(slog.DiscardHandler))
	labelled := spec("http://b:1", Decode)
	labelled.Rack = "r7"
	for _, err := range []error{
		sources.Set("configuration", []Spec{spec("http://b:1", Decode)}),
		sources.Set("kubernetes", []Spec{labelled}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	before := f.Servers()[0].live
	if err := sources.Set("configuration", nil); err != nil {
		t.Fatal(err)
	}
	after := f.Servers()[0]
	if after.Rack != "r7" || after.live != before {
		t.Errorf("rack %q; state kept: %v", after.Rack, after.live == before)
	}
}

func TestSources_AnErrorChangesNothing(t *testing.T) {
	f := newTestFleet(t)
	sources := NewSources(f, slog.New(slog.DiscardHandler))
	if err := sources.Set("dns", []Spec{spec("http://a:1", Both)}); err != nil {
		t.Fatal(err)
	}
	err := sources.Set("dns", []Spec{spec("ftp://a:1", Both)})
	if err == nil || !strings.HasPrefix(err.Error(), "servers from dns: ") {
		t.Errorf("error %v", err)
	}
	if got := ids(f); !slices.Equal(got, []string{"a:1"}) {
		t.Errorf("fleet is %v", got)
	}
}
