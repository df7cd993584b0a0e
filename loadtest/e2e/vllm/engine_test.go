package vllm

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// upWithin is what a vLLM gets to start: a minute of computing, and several start at once.
const upWithin = 10 * time.Minute

// kvBlock is the tokens of a KV block of each engine.
const kvBlock = 32

// mostRanks is how many data-parallel ranks an engine can be started with: each has ports of its own,
// one above those of the rank before it, for transfers and for KV events.
const mostRanks = 2

// An engine is one `vllm serve`.
type engine struct {
	process        *process.Process
	url            string
	events, replay string // addresses of its KV events, of its first rank
	ranks          int    // data-parallel ones behind its address; 0: it has none
	connector      string // that the gateway is told of; "": it asks the engine
	recomputes     int    // how many prompts at most it computes though they were computed for it
	forget         func() // drops what is kept of prompts outside of engines, whatever their salt; may be nil
}

// launch starts an engine without waiting for it, with more arguments if need be. One whose name begins
// with "prefill" sends KV, the others receive it.
func launch(t *testing.T, name string, more ...string) *engine {
	t.Helper()
	vllm := filepath.Join(process.Root(t), ".cache", "vllm")
	serve := process.FreeAddress(t)
	side, events, replay := process.FreeAddresses(t, mostRanks), process.FreeAddresses(t, mostRanks), process.FreeAddresses(t, mostRanks)
	env := []string{
		"VLLM_CPU_KVCACHE_SPACE=1", // GiB: a million tokens of this model
		"VLLM_CPU_OMP_THREADS_BIND=nobind", "OMP_NUM_THREADS=1",
		"VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT=" + process.Port(t, side),
		"HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1",
	}
	role := "kv_consumer"
	if strings.HasPrefix(name, "prefill") {
		role = "kv_producer"
	}
	args := append([]string{"-m", "vllm.entrypoints.openai.api_server",
		"--model", filepath.Join(vllm, "model"), "--served-model-name", model,
		"--host", "127.0.0.1", "--port", process.Port(t, serve),
		"--enforce-eager", "--max-model-len", "8192", "--max-num-seqs", "16", "--block-size", strconv.Itoa(kvBlock),
		"--enable-prompt-tokens-details",
		"--kv-transfer-config", fmt.Sprintf(`{"kv_connector":"NixlConnector","kv_role":%q,"kv_buffer_device":"cpu"}`, role),
		"--kv-events-config", fmt.Sprintf(`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%s","replay_endpoint":"tcp://*:%s"}`,
			process.Port(t, events), process.Port(t, replay))}, more...)
	p := process.Start(t, env, name, filepath.Join(vllm, "bin", "python"), args...)
	return &engine{process: p, url: "http://" + serve, events: "tcp://" + events, replay: "tcp://" + replay}
}

func (e *engine) host() string { return strings.TrimPrefix(e.url, "http://") }

func (e *engine) waitUntilUp(t *testing.T) {
	t.Helper()
	process.WaitFor(t, e.process, e.url+" to serve", upWithin, process.Answers(e.url+"/health"))
}

// kill ends the engine at once, with the processes that compute for it.
func (e *engine) kill(t *testing.T) {
	t.Helper()
	for _, child := range descendants(e.process.Cmd.Process.Pid) {
		_ = syscall.Kill(child, syscall.SIGKILL) // it may have ended
	}
	e.process.Kill(t)
}

// descendants of a process, the youngest first.
func descendants(pid int) (all []int) {
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil // it has ended
	}
	for _, word := range strings.Fields(string(children)) {
		if child, err := strconv.Atoi(word); err == nil {
			all = append(all, append(descendants(child), child)...)
		}
	}
	return all
}
