package access

import (
	"errors"
	"testing"
	"time"
)

// admit lets requests of one token in until one is refused, at most 1000.
func admit(k *Key, now time.Time) (n int, refused *LimitError) {
	for range 1000 {
		if _, err := k.Admit(1, now); err != nil {
			errors.As(err, &refused)
			return n, refused
		}
		n++
	}
	return n, nil
}

func TestQuota_AMinutesWorthAtOnceAndEvenlyBack(t *testing.T) {
	k := open(t, entry("k", "tenant: a", "requests-per-minute: 60")).Find([]byte("k"))
	n, refused := admit(k, testTime)
	if n != 60 || refused == nil || refused.Of != OfRequests || refused.Limit != 60 || refused.Wait != time.Second || refused.Never {
		t.Errorf("%d, then %+v", n, refused)
	}
	if n, _ := admit(k, testTime.Add(10*time.Second)); n != 10 {
		t.Errorf("ten seconds later %d more", n)
	}
	if n, _ := admit(k, testTime.Add(time.Hour)); n != 60 {
		t.Errorf("an hour later %d more", n)
	}
	if n, _ := admit(k, testTime); n != 0 {
		t.Errorf("with a clock that is set back %d more", n)
	}
}

func TestQuota_TokensAreEstimatedThenCorrected(t *testing.T) {
	k := open(t, entry("k", "tenant: a", "prompt-tokens-per-minute: 600", "output-tokens-per-minute: 60")).Find([]byte("k"))
	left := func(of string) int { return k.LimitStatuses(testTime)[of].Remaining }
	charge, err := k.Admit(500, testTime)
	if err != nil || left(OfPrompt) != 100 {
		t.Fatalf("%v, %d left", err, left(OfPrompt))
	}
	if _, err := k.Admit(101, testTime); err == nil {
		t.Error("more than is left came in")
	}
	charge.AddOutput(40, testTime)
	if left(OfOutput) != 20 {
		t.Errorf("%d output tokens left", left(OfOutput))
	}
	charge.End(Tokens{Prompt: 400, Output: 100}, testTime)
	charge.End(Tokens{Prompt: 400, Output: 100}, testTime) // counts once
	if left(OfPrompt) != 200 || left(OfOutput) != 0 {
		t.Errorf("after correction %d and %d left", left(OfPrompt), left(OfOutput))
	}
	_, err = k.Admit(1, testTime)
	var refused *LimitError
	if !errors.As(err, &refused) || refused.Of != OfOutput || refused.Wait != 41*time.Second { // 40 overdrawn, one wanted
		t.Errorf("overdrawn: %+v", err)
	}
	later := testTime.Add(41 * time.Second)
	if charge, err = k.Admit(1, later); err != nil {
		t.Fatalf("41 s later: %v", err)
	}
	before := k.LimitStatuses(later)
	charge.Refund(later)
	if after := k.LimitStatuses(later); after[OfPrompt].Remaining != before[OfPrompt].Remaining+1 {
		t.Errorf("refunded: %+v, before %+v", after, before)
	}
	if _, err := k.Admit(601, later); !errors.As(err, &refused) || !refused.Never {
		t.Errorf("more than a minute's worth at once: %+v", err)
	}
}

// What one answer overdraws keeps the key out for an hour at most, and what is given back
// never makes more than a minute's worth.
func TestQuota_DebtAndRefundsAreBounded(t *testing.T) {
	k := open(t, entry("k", "tenant: a", "output-tokens-per-minute: 60")).Find([]byte("k"))
	charge, err := k.Admit(1, testTime)
	if err != nil {
		t.Fatal(err)
	}
	charge.AddOutput(1_000_000, testTime)
	_, err = k.Admit(1, testTime)
	var refused *LimitError
	if !errors.As(err, &refused) || refused.Wait != time.Hour+time.Second { // the debt, and the token that is wanted
		t.Errorf("overdrawn by a million tokens: %+v", err)
	}
	charge.Refund(testTime)
	if left := k.LimitStatuses(testTime)[OfOutput]; left.Remaining != 60 || left.Reset != 0 {
		t.Errorf("after the refund %+v", left)
	}
}

func TestQuota_RequestsAtOnceAndWhatAReloadKeeps(t *testing.T) {
	c := open(t, entry("k", "tenant: a", "concurrent-requests: 2", "requests-per-minute: 100"))
	k := c.Find([]byte("k"))
	first, err := k.Admit(1, testTime)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = k.Admit(1, testTime); err != nil {
		t.Fatal(err)
	}
	var refused *LimitError
	if _, err = k.Admit(1, testTime); !errors.As(err, &refused) || refused.Of != OfConcurrent || refused.Wait <= 0 {
		t.Errorf("a third: %+v", err)
	}
	reload(t, c, entry("k", "tenant: a", "concurrent-requests: 3", "requests-per-minute: 50"))
	k = c.Find([]byte("k"))
	if s := k.LimitStatuses(testTime)[OfRequests]; s.Limit != 50 || s.Remaining != 48 || s.Reset != 2400*time.Millisecond {
		t.Errorf("after a reload %+v", s)
	}
	if n, refused := admit(k, testTime); n != 1 || refused.Of != OfConcurrent {
		t.Errorf("after a reload %d more, then %+v", n, refused)
	}
	first.End(Tokens{-1, -1}, testTime) // begun before the reload
	if n, _ := admit(k, testTime); n != 1 {
		t.Errorf("after an end %d more", n)
	}
}
