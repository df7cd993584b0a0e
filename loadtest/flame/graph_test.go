package flame

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
)

// profileOf is a profile of stacks, each from its root: "a b c".
func profileOf(t *testing.T, stacks map[string]int64) *bytes.Buffer {
	t.Helper()
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}},
		PeriodType: &profile.ValueType{Type: "cpu", Unit: "nanoseconds"},
	}
	locations := map[string]*profile.Location{}
	for stack, value := range stacks {
		sample := &profile.Sample{Value: []int64{1, value}}
		for _, name := range strings.Fields(stack) {
			if locations[name] == nil {
				f := &profile.Function{ID: uint64(len(p.Function) + 1), Name: name}
				p.Function = append(p.Function, f)
				locations[name] = &profile.Location{ID: f.ID, Line: []profile.Line{{Function: f}}}
				p.Location = append(p.Location, locations[name])
			}
			sample.Location = append([]*profile.Location{locations[name]}, sample.Location...)
		}
		p.Sample = append(p.Sample, sample)
	}
	var out bytes.Buffer
	if err := p.Write(&out); err != nil {
		t.Fatal(err)
	}
	return &out
}

// Stacks that begin alike are one bar as far as they do, as wide as their CPU together.
func TestGraph_MergesStacksFromTheirRoots(t *testing.T) {
	p, err := profile.Parse(profileOf(t, map[string]int64{"main read parse": 30, "main read": 20, "main write": 50, "gc": 100}))
	if err != nil {
		t.Fatal(err)
	}
	root, err := merge(p)
	if err != nil {
		t.Fatal(err)
	}
	main := root.calls["main"]
	if root.value != 200 || main.value != 100 || main.calls["read"].value != 50 || main.calls["read"].calls["parse"].value != 30 {
		t.Errorf("all %d, main %+v", root.value, main)
	}
	if first := root.widest()[0].name; first != "gc" && first != "main" || main.widest()[0].name != "read" && main.widest()[0].name != "write" {
		t.Errorf("the widest is %s", first)
	}
}

// Of inlined calls the innermost is first in a location, and stands above its callers.
func TestGraph_InlinedCallsStandAboveTheirCallers(t *testing.T) {
	inner, outer := &profile.Function{ID: 1, Name: "inner"}, &profile.Function{ID: 2, Name: "outer"}
	location := &profile.Location{ID: 1, Line: []profile.Line{{Function: inner}, {Function: outer}}}
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "cpu", Unit: "nanoseconds"}}, Function: []*profile.Function{inner, outer},
		Location: []*profile.Location{location}, Sample: []*profile.Sample{{Value: []int64{5}, Location: []*profile.Location{location}}},
	}
	var out bytes.Buffer
	if err := p.Write(&out); err != nil {
		t.Fatal(err)
	}
	p, err := profile.Parse(&out)
	if err != nil {
		t.Fatal(err)
	}
	root, err := merge(p)
	if err != nil || root.calls["outer"] == nil || root.calls["outer"].calls["inner"] == nil {
		t.Errorf("%+v %v", root, err)
	}
}

// A name is escaped and said whole to who points at it; what is too narrow to be seen is left out; what is no
// profile, or an empty one, is an error.
func TestWriteSVG_SaysNamesAndShares(t *testing.T) {
	var out strings.Builder
	if err := WriteSVG(&out, "a & b", profileOf(t, map[string]int64{"x/y.(*T[<int>]).read": 99_999_000, "x/y.tiny": 1000})); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a &amp; b: 0.10 s of CPU", "<title>x/y.(*T[&lt;int&gt;]).read: 100.0 %</title>", ">y.(*T[&lt;int&gt;]).read</text>"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s is missing", want)
		}
	}
	if strings.Contains(out.String(), "tiny") {
		t.Error("a frame of no pixel is drawn")
	}
	if err := WriteSVG(&out, "", profileOf(t, nil)); err == nil {
		t.Error("an empty profile is drawn")
	}
	if err := WriteSVG(&out, "", strings.NewReader("no profile")); err == nil {
		t.Error("what is no profile is drawn")
	}
}
