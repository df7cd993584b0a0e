package pools

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
)

func TestSleepConfig_WakeTime(t *testing.T) {
	c := SleepConfig{MinAwake: 30 * time.Second, Wake: 5 * time.Second}
	minutes := 10 * time.Minute
	for _, each := range []struct {
		name      string
		seen      time.Duration
		occupants []Occupant
		want      time.Duration
	}{
		{"free GPUs", 0, nil, 5 * time.Second},
		{"it was seen to take longer", 8 * time.Second, nil, 8 * time.Second},
		{"an occupant long awake and long quiet", 0, []Occupant{{Awake: minutes, Idle: minutes}}, 5 * time.Second},
		{"one just woken", 0, []Occupant{{Awake: time.Second, Idle: minutes}}, 34 * time.Second},
		{"one in use until lately will be wanted again", 0, []Occupant{{Awake: minutes, Idle: time.Second}}, 10 * time.Second},
		{"one at work finishes first", 0, []Occupant{{Awake: minutes, Remaining: 12 * time.Second}}, 22 * time.Second},
		{"work that ends within the least time awake costs nothing more", 0, []Occupant{{Awake: 10 * time.Second, Remaining: 12 * time.Second}}, 30 * time.Second},
		{"two", 0, []Occupant{{Awake: minutes, Idle: minutes}, {Awake: 20 * time.Second, Idle: minutes}}, 15 * time.Second},
	} {
		if got := c.WakeTime(each.seen, each.occupants); got != each.want {
			t.Errorf("%s: %v, want %v", each.name, got, each.want)
		}
	}
}

// The probe asked before we woke the server, and its answer came after.
func TestTurn_OldNewsIsNotBelieved(t *testing.T) {
	var l GPUShare
	now := time.Now()
	l.Observe(true, l.Version(), now)
	asked := l.Version()
	l.RecordWake(time.Second, now)
	l.Observe(true, asked, now)
	if asleep, _ := l.Asleep(); asleep {
		t.Error("it is taken to sleep")
	}
	l.Observe(true, l.Version(), now)
	if asleep, _ := l.Asleep(); !asleep {
		t.Error("it is not taken to sleep, though the engine says so now")
	}
}

// 1 a request is about to count on the server; 2 the server is to rest; 3 it is done
// when the request has left, and not before; 4 no request enters any more.
func TestTurn_NobodyCountsOnAServerThatRests(t *testing.T) {
	var l GPUShare
	if !l.Enter() {
		t.Fatal("an awake server was not entered")
	}
	l.SetDraining(true)
	if l.Unused() {
		t.Error("done, with a request at work")
	}
	if l.Enter() {
		t.Error("a resting server was entered")
	}
	l.Leave(time.Now())
	if !l.Unused() {
		t.Error("not done, with no request there")
	}
	l.SetDraining(false)
	if !l.Enter() {
		t.Error("what rests no more was not entered")
	}
}

// A server rests until it sleeps. When its engine wakes after that, whatever woke it, it does
// not rest any more.
func TestTurn_NobodyRestsBeyondItsSleep(t *testing.T) {
	for name, wakes := range map[string]func(*GPUShare){
		"we woke it":      func(l *GPUShare) { l.RecordWake(time.Second, time.Now()) },
		"another program": func(l *GPUShare) { l.Observe(false, l.Version(), time.Now()) },
	} {
		var l GPUShare
		for round := range 2 {
			l.SetDraining(true)
			l.RecordSleep()
			if asleep, _ := l.Asleep(); !asleep || l.Enter() {
				t.Errorf("%s, round %d: it does not sleep", name, round)
			}
			wakes(&l)
			if asleep, _ := l.Asleep(); asleep || !l.Enter() {
				t.Errorf("%s, round %d: it rests for ever", name, round)
			}
			l.Leave(time.Now())
		}
	}
}

// What an occupant of GPUs is described as: how long it is awake, and how long no request has
// counted on it, here or elsewhere.
func TestGPUShare_AnOccupantIsDescribed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g GPUShare
		expect := func(when string, want Occupant, awake bool) {
			t.Helper()
			got, is := g.Occupant(time.Now(), want.Remaining)
			if is != awake || awake && got != want {
				t.Errorf("%s: %+v, awake %v; want %+v, %v", when, got, is, want, awake)
			}
		}
		expect("before it was seen", Occupant{}, false)
		g.Observe(false, g.Version(), time.Now())
		time.Sleep(time.Second)
		expect("seen awake", Occupant{Awake: time.Second, Idle: time.Second}, true)
		g.Observe(false, g.Version(), time.Now())
		g.Enter()
		time.Sleep(time.Second)
		expect("at work", Occupant{Awake: 2 * time.Second, Remaining: time.Minute}, true)
		g.Leave(time.Now())
		time.Sleep(time.Second)
		expect("its work is done", Occupant{Awake: 3 * time.Second, Idle: time.Second}, true)
		g.RecordUse(time.Now())
		time.Sleep(time.Second)
		expect("another gateway used it", Occupant{Awake: 4 * time.Second, Idle: time.Second}, true)
		g.RecordSleep()
		expect("asleep", Occupant{}, false)
		g.Observe(false, g.Version(), time.Now())
		time.Sleep(time.Second)
		expect("seen awake again", Occupant{Awake: time.Second, Idle: time.Second}, true)
		g.RecordSleep()
		g.RecordWake(time.Second, time.Now())
		time.Sleep(2 * time.Second)
		expect("woken", Occupant{Awake: 2 * time.Second, Idle: 2 * time.Second}, true)
	})
}

// The time to wake is what it took lately: the first time as it was, then the mean of a few.
func TestGPUShare_WakingTakesWhatItTook(t *testing.T) {
	var g GPUShare
	for i, c := range []struct{ took, believed time.Duration }{{8 * time.Second, 8 * time.Second}, {4 * time.Second, 7 * time.Second}, {11 * time.Second, 8 * time.Second}} {
		g.RecordSleep()
		g.RecordWake(c.took, time.Now())
		if asleep, took := g.Asleep(); asleep || took != c.believed {
			t.Errorf("waking %d: asleep %v, takes %v, want %v", i, asleep, took, c.believed)
		}
	}
}

// Another gateway that manages the GPUs closes a server to this one.
func TestGPUShare_AClosedServerIsNotEntered(t *testing.T) {
	s := upFleet(t, nil, Spec{URL: "http://10.0.0.1:1", Role: Both, GPUs: "a"}).Servers()[0]
	for round := range 2 {
		if s.Asleep() || !s.GPUShare().Enter() {
			t.Errorf("round %d: an open one is not entered", round)
		}
		s.GPUShare().Leave(time.Now())
		s.CloseGPUShare(true)
		if !s.Asleep() || s.GPUShare().Enter() {
			t.Errorf("round %d: a closed one is entered", round)
		}
		if due(s.ProbeDue()) {
			t.Errorf("round %d: it is probed because it is closed", round)
		}
		s.CloseGPUShare(false)
		if !due(s.ProbeDue()) {
			t.Errorf("round %d: it is not looked whether it is awake", round)
		}
		if s.CloseGPUShare(false); due(s.ProbeDue()) {
			t.Errorf("round %d: it is probed though nothing has changed", round)
		}
	}
}

// A server that sleeps is awake when those on its GPUs are done, and it has woken; servers
// elsewhere do not count, nor do those that sleep.
func TestServer_WakeTimeCountsThoseOnItsGPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := upFleet(t, func(c *Config) { c.Sleep.Wake = 5 * time.Second },
			Spec{URL: "http://10.0.0.1:1", Role: Both, GPUs: "a"}, Spec{URL: "http://10.0.0.2:1", Role: Both, GPUs: "a"},
			Spec{URL: "http://10.0.0.3:1", Role: Both, GPUs: "b"}, spec("http://10.0.0.4:1", Both), spec("http://10.0.0.5:1", Both))
		s := f.Servers()
		ids := func(servers []*Server) (all string) {
			for _, o := range servers {
				all += o.ID() + " "
			}
			return all
		}
		if got := ids(s[0].SharingGPUs()) + "| " + ids(s[2].SharingGPUs()) + "| " + ids(s[3].SharingGPUs()); got != "10.0.0.2:1 | | " {
			t.Errorf("on the GPUs of three servers: %s", got)
		}
		for _, o := range s {
			o.GPUShare().Observe(false, o.GPUShare().Version(), time.Now())
		}
		if got := s[0].WakeTime(time.Now()); got != 0 {
			t.Errorf("awake: %v", got)
		}
		s[0].GPUShare().RecordSleep()
		time.Sleep(10 * time.Minute)
		if got := s[0].WakeTime(time.Now()); got != 5*time.Second {
			t.Errorf("its neighbour is quiet: %v", got)
		}
		claim(t, s[1], Prefill, curve.Work{Estimate: 7 * time.Second})
		claim(t, s[1], Decode, curve.Work{Estimate: 4 * time.Second})
		claim(t, s[2], Prefill, curve.Work{Estimate: time.Hour})
		if got := s[0].WakeTime(time.Now()); got != 16*time.Second {
			t.Errorf("its neighbour works for 11 s: %v", got)
		}
		s[1].GPUShare().RecordSleep()
		if got := s[0].WakeTime(time.Now()); got != 5*time.Second {
			t.Errorf("its neighbour sleeps: %v", got)
		}
		s[0].GPUShare().RecordWake(9*time.Second, time.Now())
		s[0].GPUShare().RecordSleep()
		if got := s[0].WakeTime(time.Now()); got != 9*time.Second {
			t.Errorf("it took 9 s last time: %v", got)
		}
		if s[3].GPUShare().RecordSleep(); s[3].Asleep() || s[3].WakeTime(time.Now()) != 0 {
			t.Error("a server with GPUs of its own sleeps")
		}
	})
}
