package connector

import (
	"strconv"
	"testing"
	"time"
)

// TensorRT-LLM takes numbers from 0 to 1 alone, and tells two apart in 32 bits: who comes a second later comes behind,
// until the numbers end.
func TestPriority_OfTensorRTLLMFallsEachSecond(t *testing.T) {
	for _, year := range []int{2025, 2026, 2035, 2058} {
		key := time.Date(year, 6, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
		for range 100 {
			before, after := trtllmPriority(key), trtllmPriority(key+1000)
			if after >= before || after <= 0 || before >= 1 {
				t.Fatalf("%d: %v, and a second later %v", key, before, after)
			}
			written := strconv.FormatFloat(float64(before), 'g', -1, 32)
			if read, err := strconv.ParseFloat(written, 64); err != nil || float32(read) != before {
				t.Fatalf("%v is written %s", before, written)
			}
			key += 1000
		}
	}
	if early, late := trtllmPriority(0), trtllmPriority(1<<62); early != 1 || late != 0 {
		t.Errorf("before the first %v, behind the last %v", early, late)
	}
}
