package clients

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

const (
	clientTimeout = 4 * time.Minute
	// leastCached is the share of the later turns' prompts that must come from caches. A turn
	// that is prefilled where nothing of the conversation is costs a third of it.
	leastCached = 0.85
)

// client is a row or more of the table.
type client struct {
	name  string
	long  bool // left out of the short form
	drive func(t *testing.T, f fleet, r *results)
}

var clients = []client{
	{"openai (Python)", false, byScript("python", "check_openai.py", "chat", "completions", "responses")},
	{"openai (Node)", false, byScript("node", "check_openai.mjs", "chat", "completions", "responses")},
	{"anthropic (Python)", false, byScript("python", "check_anthropic.py")},
	{"anthropic (Node)", false, byScript("node", "check_anthropic.mjs")},
	{"openai-agents", true, byScript("python", "check_agents.py")},
	{"Vercel AI SDK", false, byScript("node", "check_ai.mjs")},
	{"LiteLLM", true, byScript("litellm", "check_litellm.py")},
	{"LiteLLM's proxy, openai", true, byProxy("check_openai.py", model, "chat", "completions", "responses")},
	{"LiteLLM's proxy, anthropic", true, byProxy("check_anthropic.py", "messages/"+model)},
	{"Qwen Code", false, runAgent},
}

// decodedAlone is how many requests of a client call a tool by its name on /v1/messages, with the schema of
// an answer: decode computes these by itself.
var decodedAlone = map[string]int{"LiteLLM": 1}

// What every client does comes to a right answer or to the client's own error; each answer is
// the work of a prefill and of a decode server, and later turns find the earlier ones in a cache.
func TestClients(t *testing.T) {
	var table table
	for _, c := range clients {
		t.Run(c.name, func(t *testing.T) {
			if c.long && testing.Short() {
				t.Skip("not in the short form")
			}
			f := startFleet(t)
			r := newResults(c.name)
			began := time.Now()
			c.drive(t, f, r)
			r.took = time.Since(began)
			r.check(t)
			table = append(table, r)
		})
	}
	t.Logf("\n%s", table)
}

// checkPairs asserts that all that was answered was prefilled on one server and decoded on
// another with the KV of its hand-off, but for so many that decode computes alone, and returns how many
// answers of pairs.
func checkPairs(t *testing.T, f fleet, alone int) (answers int) {
	t.Helper()
	process.WaitFor(t, nil, "as many answers as prefills", process.ReadyWithin, func() error {
		prefill, decode := workOf(t, f.prefill), workOf(t, f.decode)
		answers = decode.Decodes
		want := work{Prefills: answers, Pulled: answers}
		if answers == 0 || prefill != want || decode != (work{Decodes: answers, Aggregated: alone}) {
			return fmt.Errorf("prefill servers did %+v, decode servers %+v", prefill, decode)
		}
		return nil
	})
	return answers
}

// scriptConfig is what a script gets as its argument.
type scriptConfig struct {
	Client  string   `json:"client"`
	Gateway string   `json:"gateway"`
	Model   string   `json:"model"`
	Proxied bool     `json:"proxied"` // the gateway is LiteLLM's proxy
	APIs    []string `json:"apis"`
	Decode  []string `json:"decode"` // servers whose streams the script may break
}

// byScript runs a script of the directory python or node in its environment.
func byScript(environment, script string, apis ...string) func(*testing.T, fleet, *results) {
	return func(t *testing.T, f fleet, r *results) {
		runScript(t, f, r, environment, script, scriptConfig{Client: r.client, Gateway: f.gateway, Model: model, APIs: apis, Decode: f.decode})
	}
}

// byProxy runs a script against LiteLLM's proxy, which has the gateway behind it.
func byProxy(script, model string, apis ...string) func(*testing.T, fleet, *results) {
	return func(t *testing.T, f fleet, r *results) {
		runScript(t, f, r, "python", script, scriptConfig{Client: r.client, Gateway: startProxy(t, f.gateway), Model: model, Proxied: true, APIs: apis, Decode: f.decode})
	}
}

func runScript(t *testing.T, f fleet, r *results, environment, script string, config scriptConfig) {
	t.Helper()
	argument, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	// Neither the user's packages nor variables of the environment change what runs.
	parts := filepath.Join(process.Root(t), ".cache/e2e")
	command := []string{filepath.Join(parts, environment, "bin/python"), "-sEB", "../python/" + script}
	if environment == "node" { // which looks for packages beside the script
		command = []string{filepath.Join(parts, "node-bin"), filepath.Join(parts, "node", script)}
	}
	ctx, cancel := context.WithTimeout(t.Context(), clientTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], append(command[1:], string(argument))...)
	cmd.Env = append(os.Environ(), "LITELLM_LOCAL_MODEL_COST_MAP=True") // else it asks the internet
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	goOn, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	printed, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(printed)
	for lines.Scan() {
		var l line
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			t.Errorf("%s printed %q: %v", script, lines.Text(), err)
			continue
		}
		if l.Answered { // before streams are broken, after which the gateway tries servers by itself
			r.pairs = checkPairs(t, f, decodedAlone[r.client])
			_, _ = io.WriteString(goOn, "\n") // a script that has ended is an error below
			continue
		}
		r.add(l)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%s: %v", script, err)
	}
	if t.Failed() {
		t.Logf("%s", stderr.String())
	}
}

// startProxy starts LiteLLM's proxy in front of the gateway: models by the chat API, and by
// /v1/messages those that begin with "messages/".
func startProxy(t *testing.T, gateway string) (url string) {
	t.Helper()
	var models []map[string]any
	for _, name := range []string{model, "no-such-model"} {
		for prefix, upstream := range map[string]string{"": "openai/", "messages/": "anthropic/"} {
			base := gateway
			if prefix == "" {
				base += "/v1"
			}
			models = append(models, map[string]any{"model_name": prefix + name, "litellm_params": map[string]any{
				"model": upstream + name, "api_base": base, "api_key": "none",
			}})
		}
	}
	config, err := json.Marshal(map[string]any{ // JSON is YAML
		"model_list":      models,
		"router_settings": map[string]any{"disable_cooldowns": true, "num_retries": 0},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "proxy.yaml")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	listen := process.FreeAddress(t)
	env := []string{"LITELLM_LOCAL_MODEL_COST_MAP=True", "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY=true"}
	// By the environment's Python, since the script names that of the folder it was installed in.
	script := filepath.Join(process.Root(t), ".cache/e2e/litellm/bin/litellm")
	p := process.Start(t, env, "LiteLLM's proxy", ".cache/e2e/litellm/bin/python", "-sE", script, "--config", file, "--host", "127.0.0.1", "--port", process.Port(t, listen))
	process.WaitFor(t, p, "LiteLLM's proxy", 2*process.ReadyWithin, process.Answers(fmt.Sprintf("http://%s/health/readiness", listen)))
	return "http://" + listen
}
