package engine

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestLink_TransfersShareIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(1000, 0, 1) // bytes/s
		begun := time.Now()
		took := make([]time.Duration, 3)
		var wg sync.WaitGroup
		// 1000 bytes alone would take 1 s. The third joins when the first two, at half
		// speed each, have 500 left; these end at 2.5 s, and it has 500 left, alone.
		for i, delay := range []time.Duration{0, 0, time.Second} {
			wg.Go(func() {
				time.Sleep(delay)
				if err := l.transfer(t.Context(), 1000); err != nil {
					t.Error(err)
				}
				took[i] = time.Since(begun)
			})
		}
		wg.Wait()
		for i, want := range []time.Duration{2500 * time.Millisecond, 2500 * time.Millisecond, 3 * time.Second} {
			if got := took[i].Round(time.Millisecond); got != want {
				t.Errorf("transfer %d took %v, want %v", i, got, want)
			}
		}
	})
}

func TestLink_ATransferThatIsGivenUpMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(1000, 0, 1)
		begun := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := l.transfer(ctx, 1e9); err == nil {
				t.Error("a gigabyte went through")
			}
		})
		if err := l.transfer(t.Context(), 1000); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun).Round(time.Millisecond); took != 1500*time.Millisecond {
			t.Errorf("took %v, want 1 s at half speed and 0.5 s at full", took)
		}
		wg.Wait()
	})
}
