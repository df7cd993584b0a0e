package pools

import (
	"slices"
	"testing"
	"time"
)

// What an engine was doing when it was asked may have been this gateway's own request,
// which has ended since.
func TestKeeper_WorkOfItsOwnThatTheEngineToldIsNotAnothers(t *testing.T) {
	l := newLive(Default())
	k := keeper{live: l}
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	if w, err := l.adapters.want("ada", true, at(0)); w != nil || err != nil {
		t.Fatal(w, err)
	}
	l.adapters.leave("ada", at(10))
	for asked, idle := range map[int]bool{5: true, 15: false} {
		l.scraped.Store(&Load{At: at(20), Adapters: AdapterLoad{Running: []string{"ada"}, Known: true, Asked: at(asked)}})
		if got := slices.Contains(k.idle([]string{"ada"}, at(30)), "ada"); got != idle {
			t.Errorf("used until 10 ms, seen at work by who asked at %d ms: idle is %v", asked, got)
		}
	}
}

// A probe asks what the server has; before the answer is taken in, the keeper loads one
// more.
func TestKeeper_AListThatIsOlderThanALoadDoesNotCount(t *testing.T) {
	l := newLive(Default())
	base, ada := Model{ID: "m"}, Model{ID: "ada", Parent: "m"}
	l.setUp(l.health.Load(), []Model{base}, 0, time.Now())
	asked := l.health.Load()
	l.changeModels(func(models []Model) []Model { return append(models, ada) })
	l.setUp(asked, []Model{base}, 0, time.Now())
	if !l.Health().Serves("ada") {
		t.Error("it is forgotten")
	}
	l.setUp(l.health.Load(), []Model{base}, 0, time.Now())
	if l.Health().Serves("ada") {
		t.Error("the next list, which lacks it, does not count")
	}
}
