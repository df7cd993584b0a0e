package deadline

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// work is done or late, and knows since when.
type work struct {
	Deadline[work]
	lateAt time.Time // zero: it is not
}

func (w *work) late() { w.lateAt = time.Now() }

// Each deadline that is not met is missed at its time, whatever the order in which they were added, and however many
// were met before; none that was met is.
func TestSet_WhatIsNotMetIsMissedAtItsTime(t *testing.T) {
	for _, seconds := range [][]int{{1}, {1, 2, 3}, {3, 2, 1}, {2, 2, 1, 9, 5, 5, 3}} {
		for met := range 1 << len(seconds) {
			t.Run(fmt.Sprintf("%v, met %b", seconds, met), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var s Set[work]
					begun, all := time.Now(), make([]work, len(seconds))
					for i, n := range seconds {
						s.Add(&all[i].Deadline, &all[i], begun.Add(time.Duration(n)*time.Second), begun, (*work).late)
					}
					for i := range all {
						if met>>i&1 == 1 {
							s.Meet(&all[i].Deadline)
						}
					}
					time.Sleep(time.Minute)
					synctest.Wait()
					for i, n := range seconds {
						want := begun.Add(time.Duration(n) * time.Second)
						if met>>i&1 == 1 {
							want = time.Time{}
						}
						if !all[i].lateAt.Equal(want) {
							t.Errorf("that of %d s is late at %v, want %v", n, all[i].lateAt, want)
						}
					}
				})
			})
		}
	}
}

// One that is moved is missed at the later time alone, one that was met before it is added never, and one that was
// missed is not missed again.
func TestSet_MovedMetAndMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Set[work]
		begun := time.Now()
		by := func(n int) time.Time { return begun.Add(time.Duration(n) * time.Second) }
		var moved, met, missed work
		s.Add(&moved.Deadline, &moved, by(1), begun, (*work).late)
		s.Add(&moved.Deadline, &moved, by(3), begun, (*work).late)
		s.Meet(&met.Deadline)
		s.Add(&met.Deadline, &met, by(1), begun, (*work).late)
		s.Add(&missed.Deadline, &missed, by(2), begun, (*work).late)
		time.Sleep(2500 * time.Millisecond)
		synctest.Wait()
		if !moved.lateAt.IsZero() || !met.lateAt.IsZero() || !missed.lateAt.Equal(by(2)) {
			t.Fatalf("after 2.5 s late at %v, %v, %v", moved.lateAt, met.lateAt, missed.lateAt)
		}
		s.Add(&missed.Deadline, &missed, by(4), by(2), (*work).late)
		s.Meet(&missed.Deadline)
		time.Sleep(time.Minute)
		synctest.Wait()
		if !moved.lateAt.Equal(by(3)) || !met.lateAt.IsZero() || !missed.lateAt.Equal(by(2)) {
			t.Errorf("in the end late at %v, %v, %v", moved.lateAt, met.lateAt, missed.lateAt)
		}
		if s.first != nil || !s.looks.IsZero() {
			t.Error("something is kept")
		}
	})
}

// Many goroutines at once miss what they do not meet, and nothing else.
func TestSet_ManyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Set[work]
		var running sync.WaitGroup
		all := make([]work, 1000)
		for i := range all {
			running.Go(func() {
				time.Sleep(time.Duration(rand.IntN(5)) * time.Second)
				s.Add(&all[i].Deadline, &all[i], time.Now().Add(2*time.Second), time.Now(), (*work).late)
				if i%2 == 0 {
					time.Sleep(time.Duration(rand.IntN(2)) * time.Second)
					s.Meet(&all[i].Deadline)
				}
			})
		}
		running.Wait()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		for i := range all {
			if late := !all[i].lateAt.IsZero(); late == (i%2 == 0) {
				t.Fatalf("%d: late %v", i, late)
			}
		}
	})
}

// What it is for: a deadline that is met costs less than a timer (its budget: 60 ns beside others on a quiet machine, and
// nothing allocated).
func BenchmarkSet(b *testing.B) {
	var s Set[work]
	now := time.Now()
	b.ReportAllocs()
	var w work
	for b.Loop() {
		w = work{}
		s.Add(&w.Deadline, &w, now.Add(time.Hour), now, (*work).late)
		s.Meet(&w.Deadline)
	}
}

func BenchmarkTimer(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		time.AfterFunc(time.Hour, func() {}).Stop()
	}
}
