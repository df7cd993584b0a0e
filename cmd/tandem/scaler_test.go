package main

import (
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/autoscale/keda"
)

func TestReadTargets_PublishesLineByLine(t *testing.T) {
	targets := keda.NewPublishedTargets(time.Hour)
	if err := readTargets(strings.NewReader("m prefill 2\nm decode 0 5\n\nm prefill unknown\n"), targets); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	if r, err := targets.Read(keda.Pool{Model: "m", Role: "decode"}, now); err != nil || r.Replicas != 0 || r.WaitingForCapacity != 5 {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err := targets.Read(keda.Pool{Model: "m", Role: "prefill"}, now); err == nil {
		t.Errorf("unknown again, and yet %+v", r)
	}
	for _, line := range []string{"m decode", "m decode two", "m decode -1", "m decode 1 2 3", "m chef 3", "m both unknown"} {
		if err := readTargets(strings.NewReader(line), targets); err == nil {
			t.Errorf("%q is taken", line)
		}
	}
}
