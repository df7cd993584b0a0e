package cost

import (
	"fmt"
	"testing"
)

func fetchable(n int) *Candidates {
	var f Candidates
	for i := range n {
		f.Decode = append(f.Decode, Candidate{ID: fmt.Sprintf("10.0.0.%d:8000", i), FetchBlock: 16})
	}
	return &f
}

func (f *Candidates) protected() (ids map[string]bool) {
	ids = make(map[string]bool)
	for i := range f.Decode {
		if f.Decode[i].Protected {
			ids[f.Decode[i].ID] = true
		}
	}
	return ids
}

// Half of the caches are protected, of an odd number the smaller half: what is new has to go somewhere.
func TestProtect_Half(t *testing.T) {
	for n, want := range []int{0, 0, 1, 1, 2, 2, 3} {
		f := fetchable(n)
		f.Protect(0.2)
		if got := len(f.protected()); got != want {
			t.Errorf("%d of %d are protected, want %d", got, n, want)
		}
	}
}

// A server that comes or goes changes the part of at most one other.
func TestProtect_RolesStay(t *testing.T) {
	all := fetchable(64)
	all.Protect(0.2)
	was := all.protected()
	for i := range all.Decode {
		fewer := fetchable(64)
		fewer.Decode = append(fewer.Decode[:i:i], fewer.Decode[i+1:]...)
		fewer.Protect(0.2)
		changed, is := 0, fewer.protected()
		for _, c := range fewer.Decode {
			if was[c.ID] != is[c.ID] {
				changed++
			}
		}
		if changed > 1 {
			t.Errorf("without %s %d others change", all.Decode[i].ID, changed)
		}
	}
}

// What cannot be fetched from is not protected: nothing would find there what is kept.
func TestProtect_OnlyWhatIsFetchedFrom(t *testing.T) {
	f := fetchable(8)
	for i := range f.Decode {
		if i%2 == 0 {
			f.Decode[i].FetchBlock = 0
		}
	}
	f.Protect(0.2)
	for id := range f.protected() {
		if f.Decode[IndexOf(f.Decode, id)].FetchBlock == 0 {
			t.Errorf("%s is protected", id)
		}
	}
	if n := len(f.protected()); n != 2 {
		t.Errorf("%d of four are protected", n)
	}
}

// A server that prefills too is not protected, nor are ranks that step together; where little is lost none is any more.
func TestProtect_NotWhereItIsOfNoUse(t *testing.T) {
	for name, change := range map[string]func(*Candidate){
		"both roles": func(c *Candidate) { c.Both = true },
		"lockstep":   func(c *Candidate) { c.Group = 1 },
	} {
		f := fetchable(8)
		for i := range f.Decode {
			change(&f.Decode[i])
		}
		if f.Protect(0.2); len(f.protected()) != 0 {
			t.Errorf("%s: %d are protected", name, len(f.protected()))
		}
	}
	f := fetchable(8)
	f.Protect(0.2)
	if f.Protect(leastLost); len(f.protected()) != 0 {
		t.Errorf("%d are protected still", len(f.protected()))
	}
}

// Of each class of servers half is protected: a prompt that is new may go to each.
func TestProtect_HalfOfEachClass(t *testing.T) {
	f := fetchable(8)
	f.Protect(0.2)
	for i := range f.Decode { // the half that all of one class would have is one class by itself
		if f.Decode[i].Protected {
			f.Decode[i].Class = 1
		}
	}
	f.Protect(0.2)
	of := make(map[uint64]int)
	for id := range f.protected() {
		of[f.Decode[IndexOf(f.Decode, id)].Class]++
	}
	if of[0] != 2 || of[1] != 2 {
		t.Errorf("of two classes of four servers %v are protected", of)
	}
}

func TestNewAndLost(t *testing.T) {
	f := Candidates{Prefill: make([]Candidate, 2), Decode: make([]Candidate, 2)}
	f.Prefill[1].Cached.GPU = 300
	f.Decode[0].Cached.Disk = 400
	for _, c := range []struct{ prompt, seen, fresh, lost int }{{1000, 0, 600, 0}, {1000, 700, 300, 300}, {1000, 1000, 0, 600}, {350, 350, 0, 0}} {
		if fresh, lost := f.NewAndLost(c.prompt, c.seen); fresh != c.fresh || lost != c.lost {
			t.Errorf("of %d tokens of which %d came before %d are new and %d lost, want %d and %d", c.prompt, c.seen, fresh, lost, c.fresh, c.lost)
		}
	}
}
