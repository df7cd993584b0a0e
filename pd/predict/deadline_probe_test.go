package predict

import (
	"fmt"
	"testing"
	"time"
)

func TestDeadlineProbes_OneAtATimeAndOnlyWhileNobodyIsServed(t *testing.T) {
	var probes DeadlineProbes
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
			probes.Observe(x.model, at(x.second))
			continue
		}
		if got := probes.Take(x.model, at(x.second)); got != x.due {
			t.Errorf("second %d, model %s: due %v", x.second, x.model, got)
		}
	}
}

func TestDeadlineProbes_ModelsThatAreGoneAreForgotten(t *testing.T) {
	var probes DeadlineProbes
	for i := range 10_000 {
		probes.Observe(fmt.Sprint("model-", i), testTime.Add(time.Duration(i)*time.Second))
	}
	if n := len(probes.last); n > maxProbedModels {
		t.Errorf("%d models are remembered", n)
	}
	if probes.Take("model-9999", testTime.Add(10_000*time.Second)) {
		t.Error("the last one is forgotten")
	}
}

// Nothing is forgotten before there are as many models as may be remembered, and then only those
// of which nothing was observed lately.
func TestDeadlineProbes_OnlyWhatIsOldMakesRoom(t *testing.T) {
	var probes DeadlineProbes
	for i := range maxProbedModels - 1 {
		probes.Observe(fmt.Sprint("old-", i), testTime)
	}
	later := testTime.Add(probeInterval)
	if probes.Observe("new", later); len(probes.last) != maxProbedModels {
		t.Errorf("%d models are remembered, want all %d", len(probes.last), maxProbedModels)
	}
	if probes.Observe("newer", later); len(probes.last) != 2 {
		t.Errorf("%d models are remembered, want the two new ones", len(probes.last))
	}
}
