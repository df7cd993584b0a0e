package policy

import (
	"testing"
	"time"
)

// twoRacks is two prefill and two decode servers; server 0 of both is in one rack.
func twoRacks() *Links {
	return NewLinks(2, 2, []int{0, 1, 1, 0}, []float64{0.001, 0.001}, []float64{10e9, 5e9})
}

func seconds(l *Links, prefill, decode int, bytes float64, now time.Duration) float64 {
	t := NewLinkTable(2, 2)
	l.Fill(t, now)
	return t.Latency[prefill*2+decode] + bytes*t.SecondsPerByte[prefill*2+decode]
}

func TestLinks_BelieveTheirClassAtFirst(t *testing.T) {
	l := twoRacks()
	if got := seconds(l, 0, 0, 10e9, 0); got < 1 || got > 1.01 {
		t.Errorf("10 GB within the rack take %f s, want 1", got)
	}
	if got := seconds(l, 0, 1, 10e9, 0); got < 2 || got > 2.01 {
		t.Errorf("10 GB between racks take %f s, want 2", got)
	}
}

func TestLinks_AClassIsLearnedFromAllItsPairs(t *testing.T) {
	l := twoRacks()
	for i := range 100 {
		l.End(int64(i), i%2, i%2, 10e9, 3, time.Duration(i)*second)
	}
	if got := seconds(l, 1, 1, 10e9, 100*second); got < 2 || got > 3.5 {
		t.Errorf("10 GB within a rack took 3 s a hundred times, believed to take %f s", got)
	}
	if got := seconds(l, 0, 1, 10e9, 100*second); got < 1.9 {
		t.Errorf("between racks nothing was slow, believed to take %f s", got)
	}
}

// A server whose link falls to half is known within a few of its transfers, and
// the others are not blamed.
func TestLinks_ASlowServerIsSeen(t *testing.T) {
	l := twoRacks()
	now := time.Duration(0)
	for i := range 60 {
		now += second
		took, p := 1.0, i%2
		if p == 0 && i >= 20 {
			took = 2.5
		}
		l.End(int64(i), p, p, 10e9, took, now)
	}
	if got := seconds(l, 0, 0, 10e9, now); got < 1.8 {
		t.Errorf("after 20 slow transfers 10 GB are believed to take %f s, want about 2.5", got)
	}
	if got := seconds(l, 1, 1, 10e9, now); got > 1.5 {
		t.Errorf("the healthy server is believed to take %f s", got)
	}
	// Nothing is sent there any more; in ten minutes it is tried again.
	if got := seconds(l, 0, 0, 10e9, now+10*time.Minute); got > 1.6 {
		t.Errorf("after ten minutes without a sample still %f s", got)
	}
}

func TestLinks_AHealedServerIsBelieved(t *testing.T) {
	l := twoRacks()
	now := time.Duration(0)
	for i := range 80 {
		now += second
		took := 5.0
		if i >= 40 {
			took = 1
		}
		l.End(int64(i), 0, 0, 10e9, took, now)
		l.End(int64(1000+i), 1, 1, 10e9, 1, now)
	}
	if got := seconds(l, 0, 0, 10e9, now); got > 1.5 {
		t.Errorf("after 40 good transfers 10 GB are believed to take %f s", got)
	}
}

// A transfer that should have ended long ago says so before it ends.
func TestLinks_AnOverdueTransferSpeaksAtOnce(t *testing.T) {
	l := twoRacks()
	l.Begin(1, 0, 0, 10e9, 0)
	if got := seconds(l, 0, 0, 10e9, 2*second); got > 1.01 {
		t.Errorf("after 2 s of 1 s it may be chance, believed %f s", got)
	}
	if got := seconds(l, 0, 0, 10e9, 20*second); got < 15 {
		t.Errorf("after 20 s of 1 s believed %f s", got)
	}
	l.End(1, 0, 0, 10e9, 1, 20*second)
	if got := seconds(l, 0, 0, 10e9, 20*second); got > 1.01 {
		t.Errorf("it has ended and still counts: %f s", got)
	}
}

// The server with overdue transfers to several others is the slow one.
func TestLinks_OverdueTransfersNameTheServer(t *testing.T) {
	l := twoRacks()
	l.Begin(1, 0, 0, 10e9, 0)
	l.Begin(2, 0, 1, 10e9, 0)
	if got := seconds(l, 1, 1, 10e9, 30*second); got > 1.01 {
		t.Errorf("the pair without the slow server is believed to take %f s", got)
	}
	if got := seconds(l, 0, 1, 10e9, 30*second); got < 20 {
		t.Errorf("the slow server is believed to take %f s", got)
	}
}
