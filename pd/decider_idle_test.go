package pd

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A decider before which no request waits sleeps until one comes: here time passes only while
// all sleep.
func TestDecider_SleepsWhileNobodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newTestDecider(newTestFleet(t, 1, testPrompt(160)))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			d.Run(ctx)
		}()
		time.Sleep(time.Minute)
		stop()
		<-ended
	})
}
