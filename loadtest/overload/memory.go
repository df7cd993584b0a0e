package overload

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// watchMemory samples the resident memory of a process, in MB, until the function that
// it returns is called, which gives the samples.
func watchMemory(pid int) (stop func() []float64) {
	const every = 250 * time.Millisecond
	quit, done := make(chan struct{}), make(chan []float64)
	go func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		var samples []float64
		for {
			select {
			case <-quit:
				done <- samples
				return
			case <-tick.C:
				if mb, ok := residentMB(pid); ok {
					samples = append(samples, mb)
				}
			}
		}
	}()
	return func() []float64 {
		close(quit)
		return <-done
	}
}

// residentMB reads VmRSS, which Linux gives in kB.
func residentMB(pid int) (mb float64, ok bool) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(status)) {
		if rest, found := strings.CutPrefix(line, "VmRSS:"); found {
			var kb float64
			_, err := fmt.Sscan(rest, &kb)
			return kb / 1024, err == nil
		}
	}
	return 0, false
}

func mean(samples []float64) float64 {
	sum := 0.0
	for _, v := range samples {
		sum += v
	}
	return sum / max(1, float64(len(samples)))
}
