package access

import (
	"errors"
	"sync"
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

// What is charged late is charged to the bucket as it is then: a bucket that was full in the
// meantime has nothing to win back.
func TestQuota_IsRefilledBeforeItIsCharged(t *testing.T) {
	later := testTime.Add(time.Minute)
	for name, charge := range map[string]func(*Key, *QuotaCharge){
		"by an answer":        func(_ *Key, c *QuotaCharge) { c.AddOutput(50, later) },
		"by another replica":  func(k *Key, _ *QuotaCharge) { k.quota.chargeRemote("b", usage{Output: 50}, 0, later, later) },
		"by the end of it":    func(_ *Key, c *QuotaCharge) { c.End(Tokens{Prompt: -1, Output: 50}, later) },
		"by an answer, ended": func(_ *Key, c *QuotaCharge) { c.AddOutput(50, later); c.End(Tokens{Prompt: 0, Output: 50}, later) },
	} {
		k := open(t, entry("k", "tenant: a", "prompt-tokens-per-minute: 600", "output-tokens-per-minute: 60")).Find([]byte("k"))
		c, err := k.Admit(1, testTime)
		if err != nil {
			t.Fatal(err)
		}
		charge(k, &c)
		if left := k.LimitStatuses(later)[OfOutput].Remaining; left != 10 {
			t.Errorf("charged 50 of 60 %s: %d left", name, left)
		}
		if left := k.LimitStatuses(later.Add(10 * time.Second))[OfOutput].Remaining; left != 20 {
			t.Errorf("charged 50 of 60 %s: ten seconds later %d left", name, left)
		}
	}
}

// An engine that says that nothing was computed is believed; one that says nothing is not
// taken for that.
func TestQuota_AnAnswerThatCostNothing(t *testing.T) {
	for cost, want := range map[Tokens][2]int{{Prompt: 0, Output: 0}: {600, 60}, {Prompt: -1, Output: -1}: {500, 20}} {
		k := open(t, entry("k", "tenant: a", "prompt-tokens-per-minute: 600", "output-tokens-per-minute: 60")).Find([]byte("k"))
		charge, err := k.Admit(100, testTime)
		if err != nil {
			t.Fatal(err)
		}
		charge.AddOutput(40, testTime)
		charge.End(cost, testTime)
		left := k.LimitStatuses(testTime)
		if got := [2]int{left[OfPrompt].Remaining, left[OfOutput].Remaining}; got != want {
			t.Errorf("at a cost of %+v %v are left, want %v", cost, got, want)
		}
	}
}

func TestQuota_ReportsWhatIsUsedSinceItsFirstUse(t *testing.T) {
	k := open(t, entry("k", "tenant: a")).Find([]byte("k"))
	first, err := k.Admit(10, testTime)
	if err != nil {
		t.Fatal(err)
	}
	later := testTime.Add(8 * time.Second)
	if _, err := k.Admit(5, later); err != nil {
		t.Fatal(err)
	}
	first.End(Tokens{Prompt: 10, Output: 3}, later)
	want := reportedUsage{usage: usage{Requests: 2, Prompt: 15, Output: 3}, Running: 1, Age: 8}
	if got := k.quota.usage(later); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// Requests, reloads, other replicas' reports and our own come from goroutines of their own:
// the race detector looks on, and nothing that they charge is lost.
func TestQuota_IsSafeForConcurrentUse(t *testing.T) {
	const rounds, each = 200, 2
	k := open(t, entry("k", "tenant: a", "requests-per-minute: 1000000", "concurrent-requests: 1000")).Find([]byte("k"))
	var uses sync.WaitGroup
	for _, use := range []func(){
		func() {
			charge, err := k.Admit(1, testTime)
			if err != nil {
				t.Error(err)
				return
			}
			charge.AddOutput(3, testTime)
			charge.End(Tokens{Prompt: 1, Output: 4}, testTime)
		},
		func() { k.LimitStatuses(testTime) },
		func() { k.quota.usage(testTime) },
		func() { k.quota.setLimits(k.limits) },
		func() { k.quota.chargeRemote("b", usage{Requests: 1}, 1, testTime, testTime) },
	} {
		for range each {
			uses.Go(func() {
				for range rounds {
					use()
				}
			})
		}
	}
	uses.Wait()
	if got, want := k.quota.usage(testTime).usage, (usage{Requests: rounds * each, Prompt: rounds * each, Output: 4 * rounds * each}); got != want {
		t.Errorf("used %+v, want %+v", got, want)
	}
	if left := k.LimitStatuses(testTime)[OfRequests].Remaining; left != 1000000-2*rounds*each {
		t.Errorf("%d requests are left", left)
	}
}
