package pools

import (
	"testing"
	"time"
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
// when the request has left, and not before; 4 nobody enters any more.
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
		t.Error("not done, with nobody there")
	}
	l.SetDraining(false)
	if !l.Enter() {
		t.Error("what rests no more was not entered")
	}
}

// A server rests until it sleeps. When its engine wakes after that, whoever woke it, it does
// not rest any more.
func TestTurn_NobodyRestsBeyondItsSleep(t *testing.T) {
	for name, wakes := range map[string]func(*GPUShare){
		"we woke it":    func(l *GPUShare) { l.RecordWake(time.Second, time.Now()) },
		"somebody else": func(l *GPUShare) { l.Observe(false, l.Version(), time.Now()) },
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
