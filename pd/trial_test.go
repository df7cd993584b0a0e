package pd

import (
	"fmt"
	"testing"
	"time"
)

func TestTrials_OneAtATimeAndOnlyWhileNobodyIsServed(t *testing.T) {
	var trials trials
	at := func(seconds int) time.Time { return testTime.Add(time.Duration(seconds) * time.Second) }
	for _, x := range []struct {
		second int
		served bool
		model  string
		due    bool
	}{
		{0, false, "a", true}, // nothing is known yet
		{1, false, "a", false},
		{1, false, "b", true},
		{9, false, "a", false},
		{10, false, "a", true},
		{18, true, "a", false},
		{27, false, "a", false},
		{28, false, "a", true},
	} {
		if x.served {
			trials.note(x.model, at(x.second))
			continue
		}
		if got := trials.due(x.model, at(x.second)); got != x.due {
			t.Errorf("second %d, model %s: due %v", x.second, x.model, got)
		}
	}
}

func TestTrials_ModelsThatAreGoneAreForgotten(t *testing.T) {
	var trials trials
	for i := range 10_000 {
		trials.note(fmt.Sprint("model-", i), testTime.Add(time.Duration(i)*time.Second))
	}
	if n := len(trials.last); n > sweptTrials {
		t.Errorf("%d models are remembered", n)
	}
	if trials.due("model-9999", testTime.Add(10_000*time.Second)) {
		t.Error("the last one is forgotten")
	}
}

// The requests that other replicas send are no idle time of the one that decides for them.
func TestTrials_NotWhileRemoteRequestsAreServed(t *testing.T) {
	prompt := testPrompt(14_000)
	f := newTestFleet(t, 1, prompt)
	d := newTestDecider(f)
	w := f.waits(d, prompt, testModel)
	w.request.remote = true
	now := time.Now()
	d.decide(now)
	g := <-w.done
	if g.err != nil {
		t.Fatal(g.err)
	}
	g.b.release()
	if f.Binder.firsts.trials.due(testModel, now) {
		t.Error("a trial is due at the moment when a request goes")
	}
}
