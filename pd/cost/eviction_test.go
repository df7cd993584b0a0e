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
		f.Protect()
		if got := len(f.protected()); got != want {
			t.Errorf("%d of %d are protected, want %d", got, n, want)
		}
	}
}

// A server that comes or goes changes the part of at most one other.
func TestProtect_RolesStay(t *testing.T) {
	all := fetchable(64)
	all.Protect()
	was := all.protected()
	for i := range all.Decode {
		fewer := fetchable(64)
		fewer.Decode = append(fewer.Decode[:i:i], fewer.Decode[i+1:]...)
		fewer.Protect()
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
	f.Protect()
	for id := range f.protected() {
		if f.Decode[IndexOf(f.Decode, id)].FetchBlock == 0 {
			t.Errorf("%s is protected", id)
		}
	}
	if n := len(f.protected()); n != 2 {
		t.Errorf("%d of four are protected", n)
	}
}
