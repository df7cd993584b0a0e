package chaos

import (
	"fmt"
	"strings"
	"time"
)

// Checks are what must hold after a scenario.
type Checks []Check

// Check is one of them: it returns what does not hold, "" if all is well.
type Check func(o *Outcome) string

// NoErrors wants every answer whole.
func NoErrors(o *Outcome) string { return MaxErrors(0)(o) }

// MaxErrors allows so many requests to fail.
func MaxErrors(n int) Check {
	return func(o *Outcome) string {
		if o.Failed > n {
			return fmt.Sprintf("%d of %d requests failed, at most %d may: %v", o.Failed, o.Requests, n, o.Samples)
		}
		return ""
	}
}

// RecoveredWithin wants requests to be as fast and as good as before within a time
// after each event.
func RecoveredWithin(d time.Duration) Check {
	return func(o *Outcome) string {
		if o.Recovery > d {
			return fmt.Sprintf("requests still failed or were slow %.1f s after, more than %v", o.Recovery.Seconds(), d)
		}
		return ""
	}
}

// WorstTTFT bounds the time to the first token of every request.
func WorstTTFT(d time.Duration) Check {
	return func(o *Outcome) string {
		if o.WorstTTFT > d {
			return fmt.Sprintf("a first token took %.1f s, more than %v", o.WorstTTFT.Seconds(), d)
		}
		return ""
	}
}

// WorstAnswer bounds the time to the end of every whole answer.
func WorstAnswer(d time.Duration) Check {
	return func(o *Outcome) string {
		if o.WorstE2E > d {
			return fmt.Sprintf("an answer took %.1f s, more than %v", o.WorstE2E.Seconds(), d)
		}
		return ""
	}
}

// Continued wants at least so many streams continued elsewhere.
func Continued(n int) Check {
	return func(o *Outcome) string {
		if o.Continued < n {
			return fmt.Sprintf("%d streams were continued, fewer than %d", o.Continued, n)
		}
		return ""
	}
}

// MaxShare bounds the share of requests that reach a server, 0..1.
func MaxShare(server string, share float64) Check {
	return func(o *Outcome) string {
		if got := float64(o.Reached[server]) / float64(max(1, o.Requests)); got > share {
			return fmt.Sprintf("%.0f %% of the requests reached %s, more than %.0f %%", 100*got, server, 100*share)
		}
		return ""
	}
}

// Share bounds a server's share of what reached its role between two Counts, 0..1.
func Share(server, from, to string, least, most float64) Check {
	return func(o *Outcome) string {
		role, _, _ := strings.Cut(server, "-")
		all := 0
		for name, n := range o.Counts[to] {
			if strings.HasPrefix(name, role+"-") {
				all += n - o.Counts[from][name]
			}
		}
		share := float64(o.Counts[to][server]-o.Counts[from][server]) / float64(max(1, all))
		if share < least || share > most {
			return fmt.Sprintf("%s got %.0f %% of %d requests between %q and %q, not %.0f to %.0f %%", server, 100*share, all, from, to, 100*least, 100*most)
		}
		return ""
	}
}

// Balanced bounds the most requests that a server of a role got by so many times
// their mean.
func Balanced(role string, most float64) Check {
	return func(o *Outcome) string {
		highest, sum, n := 0, 0, 0
		for name, reached := range o.Reached {
			if strings.HasPrefix(name, role+"-") {
				highest, sum, n = max(highest, reached), sum+reached, n+1
			}
		}
		if imbalance := float64(highest*n) / float64(max(1, sum)); imbalance > most {
			return fmt.Sprintf("the busiest %s server got %.2f times the mean, more than %.2f: %v", role, imbalance, most, o.Reached)
		}
		return ""
	}
}

// Metric wants a sum over the gateways' samples of a metric to be within bounds.
func Metric(least, most float64, name string, labels ...string) Check {
	return func(o *Outcome) string {
		sum := 0.0
		for _, m := range o.Metrics {
			sum += m.Sum(name, labels...)
		}
		if sum < least || sum > most {
			return fmt.Sprintf("%s %v is %v, not within %v and %v", name, labels, sum, least, most)
		}
		return ""
	}
}

// FellBackWithin wants requests to have waited for a decider that was lost, and none after
// a silence longer than d, which must be a bound of the metric's buckets.
func FellBackWithin(d time.Duration) Check {
	return func(o *Outcome) string {
		const name = "tandem_leader_silence_seconds"
		lost, soon := 0.0, 0.0
		for _, m := range o.Metrics {
			lost += m.Sum(name + "_count")
			soon += m.Sum(name+"_bucket", fmt.Sprintf("le=%q", fmt.Sprint(d.Seconds())))
		}
		switch {
		case lost == 0:
			return "no request waited for the decider when it was lost"
		case soon < lost:
			return fmt.Sprintf("%v of %v waits for a lost decider were longer than %v", lost-soon, lost, d)
		}
		return ""
	}
}
