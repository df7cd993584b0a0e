package serving

import (
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// sampleCounts are requests for answers by a key that may ask for two.
var sampleCounts = []struct {
	path, fields string
	status       int
}{
	{chatPath, `"messages":[{"role":"user","content":"hi"}],"n":2`, 200},
	{chatPath, `"messages":[{"role":"user","content":"hi"}],"n":3`, 400},
	{chatPath, `"messages":[{"role":"user","content":"hi"}],"n":99999999999999999999`, 400},
	{chatPath, `"messages":[{"role":"user","content":"hi"}],"n":1.0`, 200},
	{chatPath, `"messages":[{"role":"user","content":"hi"}],"n":3.0`, 400},
	{chatPath, `"messages":[{"role":"user","content":"hi"}],"n":1.5`, 400},
	{chatPath, `"messages":[{"role":"user","content":"hi"}],"n":"3"`, 400},
	{"/v1/completions", `"prompt":["a","b"]`, 200},
	{"/v1/completions", `"prompt":["a","b","c"]`, 400},
	{"/v1/completions", `"prompt":[[5],[6],[7]]`, 400},
	{"/v1/completions", `"prompt":["a","b"],"n":2`, 400},
	{"/v1/completions", `"prompt":["a"],"n":2`, 200},
	{"/v1/completions", `"prompt":"a","best_of":3`, 400},
	{"/v1/completions", `"prompt":["a","b"],"best_of":2`, 400},
	{"/v1/completions", `"prompt":["a","b"],"prompt_embeds":["AA=="]`, 400},
	{"/v1/completions", `"prompt":[5,6,7]`, 200},
	{"/generate", `"text":["a","b"]`, 200},
	{"/generate", `"text":["a","b","c"]`, 400},
	{"/generate", `"input_ids":[[5],[6],[7]]`, 400},
	{"/generate", `"text":"a","input_ids":[5,6,7]`, 400},
	{"/generate", `"text":null,"input_ids":[5,6,7]`, 200},
	{"/generate", `"text":["a","b"],"sampling_params":{"n":2}`, 400},
	{"/generate", `"text":"a","sampling_params":{"n":2,"max_new_tokens":2}`, 200},
	{"/generate", `"text":"a","sampling_params":{"n":"3"}`, 400},
	{"/generate", `"text":"a","sampling_params":{"n":3.0}`, 400},
	{"/generate", `"text":["a","b"],"sampling_params":[{"n":1},{"n":2}]`, 400},
	{"/generate", `"text":["a","b"],"sampling_params":[{"n":1}]`, 400},
	{"/generate", `"text":["a","b"],"sampling_params":[{"max_new_tokens":2},7]`, 400},
	{"/generate", `"text":["a","b"],"sampling_params":"x"`, 400},
}

func TestEdge_AnswersAreCountedOverAllPrompts(t *testing.T) {
	whole, keys := startTestEngine(t, engine.RoleBoth, sglangEngine), withKeys(t, "sk-ada tenant=ada max-samples=2")
	c := newNativeWith(t, func(cfg *config) { // pairs give a prompt one answer
		keys(cfg)
		cfg.servers[2].add(serverEntry{URL: whole.URL(), Connector: "aggregated", Native: true})
	})
	eventually(t, "all are up", func() bool { return c.metric("tandem_server_up") == 3 })
	engines := append(c.decode, whole)
	for _, x := range sampleCounts {
		body := `{"model":"test-model",` + x.fields + `}`
		if x.path != "/generate" {
			body = `{"model":"test-model","max_tokens":2,` + x.fields + `}`
		}
		before := len(requests(engines, x.path))
		got := c.post(x.path, body, "Authorization", "Bearer sk-ada")
		if got.status != x.status {
			t.Errorf("%s {%s}: %d %s", x.path, x.fields, got.status, got.body)
		}
		if n := len(requests(engines, x.path)) - before; x.status == 400 && n != 0 {
			t.Errorf("%s {%s}: reached an engine", x.path, x.fields)
		}
	}
}

// Without keys there is a bound too.
func TestEdge_AnswersAreBoundedByDefault(t *testing.T) {
	c := newNative(t)
	prompts := `["a"` + strings.Repeat(`,"a"`, 128) + `]`
	for path, body := range map[string]string{
		"/v1/completions": `{"model":"test-model","max_tokens":1,"prompt":` + prompts + `}`,
		"/generate":       `{"sampling_params":{"max_new_tokens":1},"text":` + prompts + `}`,
	} {
		if got := c.post(path, body); got.status != 400 || gjson.Get(got.body, "error.param").String() != "n" {
			t.Errorf("%s with 129 prompts: %d %s", path, got.status, got.body)
		}
	}
}

// Sampling parameters as a list are held to the key and stripped like one object.
func TestEdge_SamplingParametersInAListAreBoundAndStripped(t *testing.T) {
	c := newNativeWith(t, withKeys(t, "sk-ada tenant=ada max-output-tokens=8"))
	for params, want := range map[string]int{
		`[{"max_new_tokens":4},{"max_new_tokens":9}]`: 400,
		`[{"max_new_tokens":4},{}]`:                   400,
		`[]`:                                          400,
		`[{"max_new_tokens":4,"extra_args":{"kv_transfer_params":"evil"}},{"max_new_tokens":4,"RID":"evil"}]`: 200,
		`[{"max_new_tokens":4},{"max_new_tokens":4,"n":1,"n":2}]`:                                             400,
		`[[{"max_new_tokens":4,"priority":"evil"}],{"max_new_tokens":4}]`:                                     400,
		`{"max_new_tokens":4,"extra_args":[{"bootstrap_host":"evil","keep":1}]}`:                              200,
		`{"max_new_tokens":4,"extra_args":{"extra_body":[{"data_parallel_rank":"evil","keep":1}]}}`:           200,
		`{"max_new_tokens":4,"extra_args":{"extra_body":[[{"data_parallel_rank":"evil"}]]}}`:                  400, // nested too deep
	} {
		got := c.post("/generate", `{"text":["the river","the city"],"sampling_params":`+params+`}`, "Authorization", "Bearer sk-ada")
		if got.status != want {
			t.Errorf("%s: %d %s", params, got.status, got.body)
		}
	}
	for _, r := range append(requests(c.prefill, "/generate"), requests(c.decode, "/generate")...) {
		if strings.Contains(r.Body, "evil") {
			t.Errorf("an engine got %s", r.Body)
		}
	}
}
