package pd

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/pd/api"
)

// aggregatedRequest is one that decode answers alone.
func aggregatedRequest(t *testing.T, stream bool) *Request {
	t.Helper()
	body, err := api.ParseBody([]byte(`{"model":"m","prompt":"hi"}`))
	if err != nil {
		t.Fatal(err)
	}
	return &Request{ID: "r", Dialect: api.Completions, Model: testModel, Body: body, Header: http.Header{}, Stream: stream, Aggregated: true, PromptTokens: 2}
}

// Each retry is load that a failing pool has to bear: one request makes MaxRetries of them,
// as long as the budget of all requests has some left, and not one more.
func TestRun_TriesAgainMaxRetriesTimesWithinTheBudget(t *testing.T) {
	for _, c := range []struct{ retries, budget, legs int }{
		{0, 10, 1}, {1, 10, 2}, {3, 10, 4}, {3, 1, 2}, {3, 0, 1},
	} {
		f := newTestFleet(t, c.retries+2, testPrompt(100)) // so that a server is left to be tried
		f.Config.MaxRetries, f.Budget = c.retries, NewBudget(0, c.budget)
		legs := 0
		f.Transport = sends(func(r *http.Request) (*http.Response, error) {
			legs++
			return &http.Response{StatusCode: http.StatusInternalServerError, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(`{}`)), Request: r}, nil
		})
		_, err := f.Run(t.Context(), aggregatedRequest(t, false))
		var failed *LegError
		if !errors.As(err, &failed) || failed.Status != http.StatusInternalServerError {
			t.Errorf("%d retries, a budget of %d: %v", c.retries, c.budget, err)
		}
		if legs != c.legs {
			t.Errorf("%d retries, a budget of %d: %d legs were sent, want %d", c.retries, c.budget, legs, c.legs)
		}
		if waiting, inFlight := f.Queue.Len(); waiting != 0 || inFlight != 0 {
			t.Errorf("%d retries, a budget of %d: after the failure %d wait and %d are in flight", c.retries, c.budget, waiting, inFlight)
		}
	}
}
