package keda

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

var decode = Pool{Model: "m", Role: "decode"}

func TestPublishedTargets_StaleAndUnknownAreErrors(t *testing.T) {
	targets := NewPublishedTargets(time.Minute)
	now := time.Now()
	if _, err := targets.Read(decode, now); !errors.Is(err, ErrUnknown) {
		t.Errorf("of empty targets: %v", err)
	}
	targets.Publish(map[Pool]Target{decode: {Replicas: 3, At: now}})
	if r, err := targets.Read(decode, now.Add(time.Minute)); err != nil || r.Replicas != 3 {
		t.Errorf("within its age: %+v, %v", r, err)
	}
	if _, err := targets.Read(decode, now.Add(time.Minute+1)); !errors.Is(err, ErrStale) {
		t.Errorf("beyond its age: %v", err)
	}
	targets.Publish(map[Pool]Target{{Model: "other", Role: "decode"}: {At: now}})
	if _, err := targets.Read(decode, now); !errors.Is(err, ErrUnknown) {
		t.Errorf("of a pool that was left out: %v", err)
	}
}

func TestHandler_AnswersOnlyWhatCounts(t *testing.T) {
	targets := NewPublishedTargets(time.Minute)
	ask := func(query string) (int, string) {
		w := httptest.NewRecorder()
		targets.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/autoscale/v1/pool?"+query, nil))
		return w.Code, w.Body.String()
	}
	const of = "model=m&role=decode"
	if code, text := ask(of); code != 503 || strings.Contains(text, "0") {
		t.Errorf("nothing known: %d %s", code, text)
	}
	targets.Publish(map[Pool]Target{decode: {Replicas: 0, WaitingForCapacity: 2, Reason: "idle", At: time.Now()}})
	code, text := ask(of)
	var a Answer
	if err := json.Unmarshal([]byte(text), &a); err != nil || code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	if a.Replicas != 0 || a.WaitingForCapacity != 2 || a.Reason != "idle" || a.Model != "m" || a.Role != "decode" {
		t.Errorf("%+v", a)
	}
	if code, _ := ask("model=m"); code != 400 {
		t.Errorf("no role: %d", code)
	}
	if code, text := ask("model=m&role=chef"); code != 400 || !strings.Contains(text, `role "chef" is neither prefill nor decode`) {
		t.Errorf("a role that does not exist: %d %s", code, text)
	}
	targets.Publish(map[Pool]Target{decode: {Replicas: 3, At: time.Now().Add(-time.Hour)}})
	if code, _ := ask(of); code != 503 {
		t.Errorf("stale: %d", code)
	}
}

func TestCollect_LeavesOutWhatIsStale(t *testing.T) {
	targets := NewPublishedTargets(time.Minute)
	targets.Publish(map[Pool]Target{
		decode:                        {Replicas: 7, WaitingForCapacity: 1, Reason: "demand", At: time.Now()},
		{Model: "m", Role: "prefill"}: {Replicas: 5, At: time.Now().Add(-time.Hour)},
	})
	err := testutil.CollectAndCompare(targets, strings.NewReader(`
# HELP tandem_desired_replicas Servers that the pool should have. Absent when unknown or stale.
# TYPE tandem_desired_replicas gauge
tandem_desired_replicas{model="m",role="decode"} 7
# HELP tandem_pool_waiting_for_capacity_requests Requests that wait because the pool has no server.
# TYPE tandem_pool_waiting_for_capacity_requests gauge
tandem_pool_waiting_for_capacity_requests{model="m",role="decode"} 1
# HELP tandem_scaling_decision 1 for what decided about the pool's desired replicas.
# TYPE tandem_scaling_decision gauge
tandem_scaling_decision{model="m",reason="demand",role="decode"} 1
`), "tandem_desired_replicas", "tandem_pool_waiting_for_capacity_requests", "tandem_scaling_decision")
	if err != nil {
		t.Error(err)
	}
}

// The age of figures is what an alert waits for: it does not end where they become too old to count.
func TestCollect_AgesOfWhatIsStaleGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		targets := NewPublishedTargets(time.Minute)
		targets.Publish(map[Pool]Target{
			decode: {Replicas: 7, At: time.Now()},
			{Model: "m", Role: "decode", Variant: "h100"}: {Replicas: 7, At: time.Now()},
		})
		time.Sleep(150 * time.Second)
		err := testutil.CollectAndCompare(targets, strings.NewReader(`
# HELP tandem_scaling_signal_age_seconds Age of the oldest figure behind the pool's desired replicas. It goes on growing while these are absent because it is old.
# TYPE tandem_scaling_signal_age_seconds gauge
tandem_scaling_signal_age_seconds{model="m",role="decode"} 150
`))
		if err != nil {
			t.Error(err)
		}
	})
}
