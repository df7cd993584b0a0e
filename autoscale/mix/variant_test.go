package mix

import (
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestParseVariant(t *testing.T) {
	file := filepath.Join(t.TempDir(), "h100.json")
	if err := os.WriteFile(file, []byte(`{"schema":1,"prefill":[0.01,0.06,0],"step":[0.01,0.00005,0.03],"kv_tokens":350000}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]*Variant{
		"h100=" + file:                        {Name: "h100", Cost: 1, GPUs: 1},
		"h100=" + file + ",cost=2.5,gpus=8":   {Name: "h100", Cost: 2.5, GPUs: 8},
		"h100=" + file + ",have=16":           {Name: "h100", Cost: 1, GPUs: 1, Have: 16},
		"h100=" + file + ",have=16,cost=much": nil,
		"h100=" + file + ",cost=NaN":          nil,
		"h100=" + file + ",cost=Inf":          nil,
		"h100=" + file + ",cost=-Inf":         nil,
		"h100=" + file + ",cost=-1":           nil,
		"h100=" + file + ",cost=0":            nil,
		"h100=" + file + ",gpus=0":            nil,
		"h100=" + file + ",gpus=-1":           nil,
		"h100=" + file + ",have=-1":           nil,
		"h100=" + file + ",have=0":            {Name: "h100", Cost: 1, GPUs: 1},
		"h100=" + file + ",gpus=x":            nil,
		"h100=" + file + ",have=1.5":          nil,
		"h100=" + file + ",colour=red":        nil,
		"h100=" + file + ".none":              nil,
		"h100":                                nil,
	} {
		got, err := ParseVariant(text)
		if (err == nil) != (want != nil) {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if want != nil && (got.Name != want.Name || got.Cost != want.Cost || got.GPUs != want.GPUs || got.Have != want.Have || got.Capacity.KVTokens != 350_000) {
			t.Errorf("%s: %+v", text, got)
		}
	}
}

// Variants are told apart by their names: in the table of advise, in what serve publishes.
func TestParseVariants_NamesAreThereAndDiffer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "h100.json")
	if err := os.WriteFile(file, []byte(`{"schema":1,"prefill":[0.01,0.06,0],"step":[0.01,0.00005,0.03],"kv_tokens":350000}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		texts []string
		want  string
	}{
		{[]string{"h100=" + file, "l40s=" + file}, ""},
		{[]string{"h100=" + file + ",cost=NaN"}, `hardware "h100=` + file + `,cost=NaN": cost NaN: want a positive number`},
		{[]string{"=" + file}, `hardware "=` + file + `": want NAME=FILE: the name is empty`},
		{[]string{"h100=" + file, "l40s=" + file, "h100=" + file + ",cost=2"}, `hardware "h100=` + file + `,cost=2": there is a variant h100 already`},
	} {
		variants, err := ParseVariants(c.texts)
		if c.want == "" {
			if err != nil || len(variants) != 2 || variants[0].Name != "h100" || variants[1].Name != "l40s" {
				t.Errorf("%q: %+v, %v", c.texts, variants, err)
			}
			continue
		}
		if err == nil || err.Error() != c.want {
			t.Errorf("%q: %v, want %s", c.texts, err, c.want)
		}
	}
}

func TestProblem_Validate(t *testing.T) {
	for _, of := range []struct {
		name   string
		change func(*Problem)
		valid  bool
	}{
		{"as it is", func(*Problem) {}, true}, {"no class", func(p *Problem) { p.Classes = nil }, false}, {"no hardware", func(p *Problem) { p.Variants = nil }, false},
		{"no use", func(p *Problem) { p.Use = 0 }, false}, {"all of it", func(p *Problem) { p.Use = 1 }, true}, {"more", func(p *Problem) { p.Use = 1.1 }, false}, {"starts that pay", func(p *Problem) { p.Switch = -1 }, false},
		{"no rate", func(p *Problem) { p.Classes[0].Rate = 0 }, false}, {"an endless prompt", func(p *Problem) { p.Classes[1].Prompt = math.Inf(1) }, false}, {"no objective", func(p *Problem) { p.Classes[0].TTFT = 0 }, false}, {"nor of tokens", func(p *Problem) { p.Classes[0].ITL = -time.Second }, false},
		{"less than no weight", func(p *Problem) { p.Classes[0].Weight = -1 }, false}, {"no weight", func(p *Problem) { p.Classes[0].Weight = 0 }, true}, {"less than no decode", func(p *Problem) { p.Classes[0].DecodeRate = -1 }, false},
		{"no capacity", func(p *Problem) { p.Variants[0].Capacity.KVTokens = 0 }, false}, {"for nothing", func(p *Problem) { p.Variants[0].Cost = 0 }, false}, {"for no number", func(p *Problem) { p.Variants[0].Cost = math.NaN() }, false}, {"without a GPU", func(p *Problem) { p.Variants[0].GPUs = 0 }, false},
		{"fewer than none", func(p *Problem) { p.Variants[0].Have = -1 }, false}, {"fewer prefill servers than none", func(p *Problem) { p.Variants[0].Prefill = -1 }, false}, {"nor decode servers", func(p *Problem) { p.Variants[0].Decode = -1 }, false},
	} {
		p := oneKind()
		of.change(p)
		if err := p.Validate(); (err == nil) != of.valid {
			t.Errorf("%s: %v", of.name, err)
		}
		if _, err := p.Solve(time.Minute); of.valid != (err == nil) {
			t.Errorf("%s: solved with %v", of.name, err)
		}
	}
}

// Layouts of the same GPUs share those that there are: no mix takes more of them together.
func TestSolve_LayoutsShareTheirGPUs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "h100.json")
	if err := os.WriteFile(file, []byte(`{"schema":1,"prefill":[0.01,0.06,0],"step":[0.01,0.00005,0.03],"kv_tokens":350000}`), 0o600); err != nil {
		t.Fatal(err)
	}
	gpus := func(kind string) (n int) {
		var variants []Variant
		for _, text := range []string{"one=" + file + ",have=4,gpus=1", "two=" + file + ",cost=2,have=4,gpus=2"} {
			v, err := ParseVariant(text + kind)
			if err != nil {
				t.Fatal(err)
			}
			variants = append(variants, *v)
		}
		m, err := (&Problem{Use: 1, Variants: variants, Classes: []Class{
			{Name: "all", Rate: 9, Uncached: 10_000, Prompt: 10_000, Output: 100, TTFT: 10 * time.Second, ITL: 50 * time.Millisecond},
		}}).Solve(5 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		for g := range variants {
			n += (m.Prefill[g] + m.Decode[g]) * variants[g].GPUs
		}
		return n
	}
	if n := gpus(",kind=h100"); n > 4 {
		t.Errorf("layouts of 4 GPUs take %d", n)
	}
	if n := gpus(""); n <= 4 {
		t.Errorf("two kinds of 4 GPUs each take %d for more than those can do", n)
	}
}
