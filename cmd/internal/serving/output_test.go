package serving

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd/predict"
)

// What answers show of their length is predicted of the next ones, streamed or not, and
// how far off the predictions are is told.
func TestOutput_LengthsAreLearned(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: func(cfg *engine.Config) { cfg.MeanOutputTokens = 30 }})
	ask := func(i int) (expected float64) {
		body := strings.Replace(chatBody([]string{"", `,"stream":true`}[i%2]), "Two riders", fmt.Sprintf("Story %d: two riders", i), 1)
		got := c.post("/v1/chat/completions", strings.Replace(body, `"max_tokens":24,`, "", 1))
		if got.status != 200 {
			t.Fatalf("%d: %s", got.status, got.body)
		}
		return gjson.Get(c.get("/debug/decisions/"+got.header.Get("X-Request-Id")).body, "attempts.0.output_tokens").Float()
	}
	if first := ask(0); first != predict.UnknownOutput {
		t.Errorf("%v tokens expected of the first", first)
	}
	for i := range 60 {
		ask(i + 1)
	}
	eventually(t, "all are counted", func() bool { return c.metric("tandem_output_prediction_ratio_count") == 61 })
	mean := c.metric("tandem_output_tokens_total") / 61
	if last := ask(61); last > 1.6*mean || last < mean/1.6 {
		t.Errorf("%v tokens expected after answers of %.0f on the mean", last, mean)
	}
}
