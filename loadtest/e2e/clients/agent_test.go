package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// agentAPIs are what the agent calls its ways to speak to a server, and the APIs that they are.
var agentAPIs = []struct{ auth, api string }{
	{"openai", "chat"}, {"openai-responses", "responses"}, {"anthropic", "messages"},
}

// runAgent lets a coding agent read a file in one turn, and run a command on it in the next,
// a process of its own that continues the session; and once with a model that there is not.
func runAgent(t *testing.T, f fleet, r *results) {
	r.version = agentVersion(t)
	for _, by := range agentAPIs {
		a := newAgent(t, f.gateway, by.auth)
		file := filepath.Join(a.dir, "harbour.txt")
		if err := os.WriteFile(file, []byte("the mole is 200 m long\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		ask, says := readsFile(file)
		r.report(by.api, "tools", a.turn(t, r.of(by.api), false, model, ask, says))
		r.report(by.api, "turns", a.runsCommand(t, r.of(by.api)))
		err := a.turn(t, &apiResults{}, false, "no-such-model", "Say something.", "")
		if err != nil && strings.Contains(err.Error(), "404") && strings.Contains(err.Error(), "The model does not exist") {
			err = nil
		} else {
			err = fmt.Errorf("it ended with %v", err)
		}
		r.report(by.api, "unknown model", err)
	}
	r.pairs = checkPairs(t, f, decodedAlone[r.client])
}

// readsFile is what the first turn asks for, and what the tool says then.
func readsFile(file string) (ask, toolSays string) {
	return fmt.Sprintf(`Call read_file({"file_path": %q}) and say what is in it.`, file), "the mole is 200 m long"
}

func (r *results) report(api, step string, err error) {
	l := line{API: api, Step: step}
	if err != nil {
		text := err.Error()
		l.Error = &text
	}
	r.add(l)
}

func agentPackage(t *testing.T) string {
	t.Helper()
	return filepath.Join(process.Root(t), ".cache/e2e/node/node_modules/@qwen-code/qwen-code")
}

func agentVersion(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(agentPackage(t), "package.json"))
	if err != nil {
		t.Fatal(err)
	}
	var p struct{ Version string }
	if err := json.Unmarshal(raw, &p); err != nil {
		t.Fatal(err)
	}
	return p.Version
}

// agent works in a directory, and has a home, of its own.
type agent struct {
	auth string
	dir  string
	env  []string
}

func newAgent(t *testing.T, gateway, auth string) agent {
	t.Helper()
	home := t.TempDir()
	return agent{auth: auth, dir: t.TempDir(), env: []string{
		"HOME=" + home, "PATH=" + os.Getenv("PATH"), "QWEN_CODE_SUPPRESS_YOLO_WARNING=1",
		"OPENAI_BASE_URL=" + gateway + "/v1", "OPENAI_API_KEY=none",
		"ANTHROPIC_BASE_URL=" + gateway, "ANTHROPIC_API_KEY=none",
	}}
}

// agentEvent is one of the list that the agent prints.
type agentEvent struct {
	Type    string
	IsError bool   `json:"is_error"`
	Result  string // of the last one
	Error   struct{ Message string }
	Message struct {
		Content json.RawMessage
		Usage   struct {
			Input  int `json:"input_tokens"`
			Cached int `json:"cache_read_input_tokens"`
		}
	}
}

// turn runs the agent, and asserts that a tool answered so, and the model after it.
func (a agent) turn(t *testing.T, into *apiResults, goOn bool, model, prompt, toolSays string) error {
	t.Helper()
	args := []string{filepath.Join(agentPackage(t), "cli-entry.js"), "--auth-type", a.auth, "--model", model, "--approval-mode", "yolo", "-o", "json"}
	if goOn {
		args = append(args, "--continue")
	}
	ctx, cancel := context.WithTimeout(t.Context(), clientTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(process.Root(t), ".cache/e2e/node-bin"), append(args, prompt)...)
	cmd.Dir, cmd.Env = a.dir, a.env
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	printed, failed := cmd.Output()
	var events []agentEvent
	if err := json.Unmarshal(printed, &events); err != nil || len(events) == 0 {
		return fmt.Errorf("%v, printed %.300q and %.600q", failed, printed, stderr.String())
	}
	end := events[len(events)-1]
	if failed != nil || end.IsError {
		return fmt.Errorf("%v: %s %s", failed, end.Error.Message, end.Result)
	}
	return checkTurn(into, events, goOn, toolSays)
}

// runsCommand is a second turn, in which the agent runs a command on its file. What the command
// writes is looked for in a file, since the agent loses what a command prints now and then: on a
// busy machine it hears of the end first, and tells the model of an empty output.
func (a agent) runsCommand(t *testing.T, into *apiResults) error {
	t.Helper()
	ask := `Now call run_shell_command({"command": "tr a-z A-Z <harbour.txt >loud.txt", "is_background": false}).`
	if err := a.turn(t, into, true, model, ask, "Exit Code: 0"); err != nil {
		return err
	}
	loud, err := os.ReadFile(filepath.Join(a.dir, "loud.txt"))
	if err == nil && !bytes.Contains(loud, []byte("THE MOLE IS 200 M LONG")) {
		err = fmt.Errorf("the command wrote %.100q", loud)
	}
	return err
}

func checkTurn(into *apiResults, events []agentEvent, goOn bool, toolSays string) error {
	used, answered, asked := false, false, goOn
	var said []string
	for _, e := range events {
		switch {
		case e.Type == "user":
			said = append(said, string(e.Message.Content))
			used = used || bytes.Contains(e.Message.Content, []byte(toolSays))
		case e.Type == "assistant" && e.Message.Usage.Input > 0:
			if asked { // the first prompt of all is no later one
				into.prompt, into.cached = into.prompt+e.Message.Usage.Input, into.cached+e.Message.Usage.Cached
			}
			asked = true
			answered = bytes.Contains(e.Message.Content, []byte(`"type":"text"`))
		}
	}
	if !used || !answered {
		return fmt.Errorf("a tool said %q: %v, of %.600q; the model answered: %v", toolSays, used, said, answered)
	}
	return nil
}
