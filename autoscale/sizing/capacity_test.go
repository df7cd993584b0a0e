package sizing

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
)

// A step of n sequences of 4,000 tokens takes 10 ms + n x (1 ms + 0.4 ms).
func TestCapacity_SequencesByHand(t *testing.T) {
	usual := Capacity{Step: curve.Curve{0.010, 0.001, 0.1}, KVTokens: 1_000_000}
	with := func(change func(*Capacity)) Capacity {
		c := usual
		change(&c)
		return c
	}
	for _, of := range []struct {
		name  string
		c     Capacity
		itl   time.Duration
		want  float64 // sequences
		speed float64 // tokens per second
	}{
		{"of 50 ms 40 are left for sequences", usual, 50 * time.Millisecond, 0.040 / 0.0014, 0.040 / 0.0014 / 0.050},
		{"half of the time is more than half of the sequences less", usual, 25 * time.Millisecond, 0.015 / 0.0014, 0.015 / 0.0014 / 0.025},
		{"room for ten", with(func(c *Capacity) { c.KVTokens = 40_000 }), 50 * time.Millisecond, 10, 10 / 0.024},
		{"a batch of eight", with(func(c *Capacity) { c.MaxSequences = 8 }), 50 * time.Millisecond, 8, 8 / 0.0212},
		{"a step alone takes as long", usual, 10 * time.Millisecond, 0, 0},
		{"not even one", usual, 11 * time.Millisecond, 0, 0},
		{"steps as long whatever is in them: room alone counts", with(func(c *Capacity) { c.Step = curve.Curve{0.020, 0, 0} }), 50 * time.Millisecond, 250, 250 / 0.020},
		{"such a step within just the time that there is", with(func(c *Capacity) { c.Step = curve.Curve{0.0625, 0, 0} }), 62500 * time.Microsecond, 250, 250 / 0.0625},
		{"such a step that is too long", with(func(c *Capacity) { c.Step = curve.Curve{0.051, 0, 0} }), 50 * time.Millisecond, 0, 0},
	} {
		if got := of.c.Sequences(of.itl, 4000); math.Abs(got-of.want) > 1e-6 {
			t.Errorf("%s: %g sequences, want %g", of.name, got, of.want)
		}
		if got := of.c.DecodeSpeed(of.itl, 4000); math.Abs(got-of.speed) > 1e-6*of.speed {
			t.Errorf("%s: %g tokens a second, want %g", of.name, got, of.speed)
		}
	}
}

// What is written is what is read, and what cannot be a server is refused.
func TestCapacity_ReadsWhatItWrites(t *testing.T) {
	good := Capacity{Schema: 1, Server: "s", Model: "m", Prefill: curve.Curve{0.01, 0.06, 0.001}, Step: curve.Curve{0.01, 5e-5, 0.03}, KVTokens: 1000, MaxSequences: 8, PrefillPoints: []PrefillPoint{{100, 0.1}}}
	for _, of := range []struct {
		name   string
		change func(*Capacity)
		valid  bool
	}{
		{"good", func(*Capacity) {}, true}, {"no bound of sequences", func(c *Capacity) { c.MaxSequences = 0 }, true}, {"a constant step", func(c *Capacity) { c.Step = curve.Curve{1, 0, 0} }, true}, {"one token of KV", func(c *Capacity) { c.KVTokens = 1 }, true},
		{"another schema", func(c *Capacity) { c.Schema = 2 }, false}, {"no schema", func(c *Capacity) { c.Schema = 0 }, false},
		{"a prefill that takes no time", func(c *Capacity) { c.Prefill = curve.Curve{} }, false}, {"a step that takes no time", func(c *Capacity) { c.Step = curve.Curve{} }, false},
		{"a prefill back in time", func(c *Capacity) { c.Prefill[1] = -1 }, false}, {"no KV", func(c *Capacity) { c.KVTokens = 0 }, false}, {"fewer sequences than none", func(c *Capacity) { c.MaxSequences = -1 }, false},
	} {
		c := good
		of.change(&c)
		path := filepath.Join(t.TempDir(), "capacity.json")
		file, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(c.Write(file), file.Close()); err != nil {
			t.Fatal(err)
		}
		read, err := ReadCapacity(path)
		if (err == nil) != of.valid || err == nil && !reflect.DeepEqual(*read, c) || err != nil && !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %+v, %v", of.name, read, err)
		}
	}
	infinite := good
	infinite.Step[0] = math.Inf(1)
	if infinite.Validate() == nil {
		t.Error("a step without an end")
	}
	if _, err := ReadCapacity(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("no file")
	}
	path := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadCapacity(path); err == nil {
		t.Error("no JSON")
	}
}

// 1,000 new tokens after 2,000: 10 ms + 60 ms; a step of one short sequence
// takes the constant and its own part.
func TestCapacity_Times(t *testing.T) {
	c := Capacity{Prefill: curve.Curve{0.01, 0.06, 0}, Step: curve.Curve{0.01, 0.002, 0.03}}
	if got := c.PrefillSeconds(1000, 2000); math.Abs(got-0.07) > 1e-9 {
		t.Errorf("%g s", got)
	}
	if got := c.PrefillSpeed(1000, 2000); math.Abs(got-1000/0.07) > 1e-6 {
		t.Errorf("%g tokens a second", got)
	}
	if got := c.MinimumStep(); got != 12*time.Millisecond {
		t.Errorf("a step of one sequence takes %v", got)
	}
}
