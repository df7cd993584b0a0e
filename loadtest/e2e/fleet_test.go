package e2e

import (
	"fmt"
	"net"
	"strings"
	"testing"
)

// fleet is two prefill and two decode servers of one model, as URLs.
type fleet struct {
	model           string
	prefill, decode []string
}

// maxModelLen is the context window of the engines in tokens.
const maxModelLen = 8192

// startSims starts the fleet as llm-d-inference-sim, in the mode that answers with
// the prompt, so that the right answer is known.
func startSims(t *testing.T) fleet {
	t.Helper()
	f := fleet{model: "test-model"}
	for i := range 4 {
		addr := freeAddress(t)
		_, port, err := net.SplitHostPort(addr)
		if err != nil {
			t.Fatal(err)
		}
		name := f.add(i, addr)
		p := start(t, "sim "+name, ".cache/e2e/sim",
			"--port", port, "--model", f.model, "--mode", "echo",
			"--force-dummy-tokenizer", "--max-model-len", fmt.Sprint(maxModelLen))
		waitFor(t, p, "the health of sim "+name, readyWithin, answers("http://"+addr+"/health"))
	}
	return f
}

// startEngines starts the fleet as tandem's own simulated engines, with further flags.
func startEngines(t *testing.T, flags ...string) fleet {
	t.Helper()
	f := fleet{model: "test-model"}
	for i := range 4 {
		addr := freeAddress(t)
		name := f.add(i, addr)
		role, _, _ := strings.Cut(name, " ")
		args := append([]string{"engine", "--listen", addr, "--role", role, "--model", f.model, "--max-model-len", fmt.Sprint(maxModelLen)}, flags...)
		p := start(t, "engine "+name, "bin/tandem-lab", args...)
		waitFor(t, p, "the health of engine "+name, readyWithin, answers("http://"+addr+"/health"))
	}
	return f
}

// add puts the i-th server of four into its pool and names it.
func (f *fleet) add(i int, addr string) string {
	if i < 2 {
		f.prefill = append(f.prefill, "http://"+addr)
		return fmt.Sprintf("prefill %d", i)
	}
	f.decode = append(f.decode, "http://"+addr)
	return fmt.Sprintf("decode %d", i-2)
}

// startGateway starts `tandem serve` in front of a fleet, exporting traces to an
// OTLP endpoint if there is one, and with further flags, and returns its URL once it is
// ready.
func startGateway(t *testing.T, f fleet, otlp string, flags ...string) string {
	t.Helper()
	listen, admin := freeAddress(t), freeAddress(t)
	args := []string{
		"serve", "--listen", listen, "--admin", admin, "--expose-pair",
		"--pairs-first", // engines without delay compute a prompt sooner than they fetch it
		"--prefill", strings.Join(f.prefill, ","), "--decode", strings.Join(f.decode, ","),
	}
	if otlp != "" {
		args = append(args, "--otlp-endpoint", otlp)
	}
	p := start(t, "gateway", "bin/tandem", append(args, flags...)...)
	waitFor(t, p, "the gateway to be ready", readyWithin, answers("http://"+admin+"/readyz"))
	return "http://" + listen
}
