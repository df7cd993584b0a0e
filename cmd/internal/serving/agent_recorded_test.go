package serving

import (
	"encoding/json"
	"os"
	"regexp"
	"testing"
)

// recordedTurns are the requests of two turns of a coding agent from npm, each of which calls a
// tool, on one API. All words are others of as many letters. A request begins with so many bytes
// of the one before it, goes on with a text, and ends with its last bytes. They are written by
//
//	cd loadtest/e2e && go test ./clients -run Record -count=1 -record ../../../../cmd/internal/serving/testdata/agent
func recordedTurns(t *testing.T, api string) (bodies []string) {
	t.Helper()
	raw, err := os.ReadFile("testdata/agent/" + api + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var recorded struct {
		Path     string
		Requests []struct {
			First int
			Text  string
			Last  int
		}
	}
	if err := json.Unmarshal(raw, &recorded); err != nil {
		t.Fatal(err)
	}
	if recorded.Path != agentAPIs[api].path {
		t.Fatalf("recorded on %s", recorded.Path)
	}
	before := ""
	for _, r := range recorded.Requests {
		before = before[:r.First] + r.Text + before[len(before)-r.Last:]
		if !json.Valid([]byte(before)) {
			t.Fatalf("not JSON: %.300s", before)
		}
		bodies = append(bodies, asWhole(before))
	}
	return bodies
}

// asWhole is a request for a short answer that is not streamed, so that its usage is in one place.
// One of the agent's clients writes JSON with white space.
func asWhole(body string) string {
	for what, instead := range map[string]string{
		`"stream":(\s*)true`: `"stream":${1}false`, `,"stream_options":{"include_usage":true}`: "", `"max_(output_)?tokens":(\s*)\d+`: `"max_${1}tokens":${2}30`,
	} {
		body = regexp.MustCompile(what).ReplaceAllString(body, instead)
	}
	return body
}

// What a real agent sends, 26 kB of system prompt and 14 tools before some words: where its
// tokens are known the second turn's beginning is found where the first turn left it, and no
// length is off. Where they are not, the third request's length and those after it are predicted
// within 5 %.
func TestAgents_ARecordedAgentsPromptsAreKnown(t *testing.T) {
	t.Parallel()
	for name, api := range agentAPIs {
		t.Run(name, func(t *testing.T) {
			bodies := recordedTurns(t, name)
			if len(bodies) != 4 {
				t.Fatalf("%d requests", len(bodies))
			}
			known := newPublishingCluster(t, 1, 1, "engine", asksAreAnswered)
			for i, body := range bodies {
				seen := known.askTurn(api, body)
				t.Logf("request %d: %+v", i, seen)
				if seen.off > 0 {
					t.Errorf("request %d: the length is off by %.2f %%", i, 100*seen.off)
				}
				if i > 0 && (seen.believed < seen.prompt*9/10 || seen.believed > seen.cached || seen.cached-seen.believed > seen.prompt/50) {
					t.Errorf("request %d: %d of %d tokens are taken for cached, %d are", i, seen.believed, seen.prompt, seen.cached)
				}
			}
			if wrong := known.metric("tandem_tokens_checked_total", `outcome="wrong"`); wrong > 0 {
				t.Errorf("%v prompts had other tokens than the gateway said", wrong)
			}
			unknown := newPublishingCluster(t, 1, 1, "off", nil)
			for i, body := range bodies {
				seen := unknown.askTurn(api, body)
				t.Logf("request %d, tokens unknown: %+v", i, seen)
				if i >= 2 && seen.off > 0.05 {
					t.Errorf("request %d: the length is off by %.1f %%", i, 100*seen.off)
				}
			}
		})
	}
}
