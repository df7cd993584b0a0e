package vllm

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// TestRequests: every row of requests() through pairs of each kind of engine is what one engine says.
func TestRequests(t *testing.T) {
	t.Run("NixlConnector", func(t *testing.T) {
		p, d := pairOf(t, transferBy("NixlConnector", "kv_producer"), transferBy("NixlConnector", "kv_consumer"), allRequests(t)...)
		g := gatewayOf(t, p, d)
		asksAll(t, "NixlConnector, producer and consumer", g, d, 20_000)
		cameFromPrefill(t, d, 3000)
		learnsTokenBytes(t, g, d, 1024, kvBlock) // of two layers, two heads of 64 keys and values of two bytes
	})
	t.Run("NixlPushConnector", func(t *testing.T) {
		p, d := pairOf(t, transferBy("NixlPushConnector", "kv_producer"), transferBy("NixlPushConnector", "kv_consumer"), allRequests(t)...)
		asksAll(t, "NixlPushConnector, producer and consumer", gatewayOf(t, p, d), d, 40_000)
		cameFromPrefill(t, d, 3000)
	})
	t.Run("MultiConnector", func(t *testing.T) {
		disk := t.TempDir()
		p, d := pairOf(t, andDisk(disk, "kv_producer"), andDisk(disk, "kv_consumer"), allRequests(t)...)
		d.forget = func() { emptyDirectory(t, disk) }
		asksAll(t, "MultiConnector of NixlConnector and ExampleConnector", gatewayOf(t, p, d), d, 110_000)
		cameFromPrefill(t, d, 3000)
	})
	t.Run("ExampleConnector", func(t *testing.T) {
		disk := t.TempDir()
		shared := []string{"--kv-transfer-config", compact(onDisk(disk))}
		p, d := pairOf(t, shared, shared, allRequests(t)...)
		p.connector, d.connector = "store", "store"
		// It names the KV of a prompt by all of its whole blocks, so that decode, which is asked for what comes
		// behind prefill's token, looks for another name where that token is the first behind one: one prompt of 16.
		d.recomputes = 6
		d.forget = func() { emptyDirectory(t, disk) }
		asksAll(t, "ExampleConnector on a shared disk", gatewayOf(t, p, d), d, 130_000)
		cameFromPrefill(t, d, 3000)
	})
}

// onDisk is the configuration of a connector that keeps KV in files of a directory, which engines may share.
func onDisk(directory string) map[string]any {
	return connectorOf("ExampleConnector", "kv_both", map[string]any{"shared_storage_path": directory})
}

// andDisk are the arguments of an engine that hands KV over by NIXL, and writes it into a directory too.
func andDisk(directory, role string) []string {
	return []string{"--kv-transfer-config", compact(map[string]any{
		"kv_connector": "MultiConnector", "kv_role": role,
		"kv_connector_extra_config": map[string]any{"connectors": []any{connectorOf("NixlConnector", role, nil), onDisk(directory)}},
	})}
}

// emptyDirectory removes what is in a directory.
func emptyDirectory(t *testing.T, directory string) {
	t.Helper()
	entries, err := os.ReadDir(directory)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(directory, entry.Name())); err != nil {
			t.Fatal(err)
		}
	}
}

// allRequests are the arguments of an engine that takes all of requests(): a model of random weights would
// fill what a schema leaves open with white space until it has no room for the rest.
func allRequests(t *testing.T) []string {
	t.Helper()
	return append(withTools(t), "--structured-outputs-config", `{"backend":"xgrammar","disable_any_whitespace":true}`)
}

// connectorOf is the configuration of a connector.
func connectorOf(connector, role string, extra map[string]any) map[string]any {
	config := map[string]any{"kv_connector": connector, "kv_role": role, "kv_buffer_device": "cpu"}
	if extra != nil {
		config["kv_connector_extra_config"] = extra
	}
	return config
}

// transferBy are the arguments of an engine that hands KV over by a connector.
func transferBy(connector, role string) []string {
	return []string{"--kv-transfer-config", compact(connectorOf(connector, role, nil))}
}

// pairOf starts a prefill and a decode engine.
func pairOf(t *testing.T, prefill, decode []string, both ...string) (p, d *engine) {
	t.Helper()
	p, d = launch(t, "prefill", append(prefill, both...)...), launch(t, "decode", append(decode, both...)...)
	p.waitUntilUp(t)
	d.waitUntilUp(t)
	return p, d
}

// gatewayOf is a gateway that sees a pair, and takes it wherever it can. The engines have transferred KV before it
// is used, since at the first time they stand still for seconds on a busy machine.
func gatewayOf(t *testing.T, p, d *engine, settings ...string) gateway {
	t.Helper()
	g := startGateway(t, []*engine{p}, []*engine{d}, append(settings, "pairs-first: true")...)
	process.WaitFor(t, g.process, "the gateway to see both engines", process.ReadyWithin, process.SeesUp(g.admin, max(1, p.ranks)+max(1, d.ranks)))
	for i := range 4 {
		ask(t, g.url, map[string]any{"prompt": text(uint64(19_000+i), 60), "max_tokens": 2})
	}
	return g
}

// cameFromPrefill checks that decode got at least so many tokens of prompts over the connector.
func cameFromPrefill(t *testing.T, d *engine, least float64) {
	t.Helper()
	came := metric(t, d.url, "vllm:prompt_tokens_by_source_total", `source="external_kv_transfer"`)
	t.Logf("%v prompt tokens came from prefill", came)
	if came < least {
		t.Errorf("of at least %v", least)
	}
}

// learnsTokenBytes checks that the gateway takes a token to have the bytes of KV that decode's engine has got of
// each: what the model has, and what of last blocks is empty.
func learnsTokenBytes(t *testing.T, g gateway, d *engine, each, block float64) {
	t.Helper()
	bytes, moves := metric(t, d.url, "vllm:nixl_bytes_transferred_sum"), metric(t, d.url, "vllm:nixl_bytes_transferred_count")
	tokens := metric(t, d.url, "vllm:prompt_tokens_by_source_total", `source="external_kv_transfer"`)
	learned := 0.0
	process.WaitFor(t, g.process, "the gateway to see what moved", process.ReadyWithin, func() error {
		learned = metric(t, g.admin, "tandem_engine_kv_bytes_per_token")
		if math.Abs(learned-bytes/tokens) > 0.001*learned || learned == 0 {
			return fmt.Errorf("%v bytes for each token, the engine has got %v", learned, bytes/tokens)
		}
		return nil
	})
	t.Logf("%.0f bytes for each token of %.0f in %.0f transfers: %.0f, and %.1f %% of empty ends of blocks", learned, tokens, moves, each, 100*(learned/each-1))
	if most := each * (1 + moves*(block-1)/tokens); learned < each || learned > most {
		t.Errorf("not from %v to %v", each, most)
	}
	asked := ask(t, g.url, map[string]any{"prompt": promptOf(733, 2000), "max_tokens": 4})
	var priced struct {
		Attempts []struct {
			Alternatives []struct {
				Chosen bool
				Moved  float64 `json:"moved_bytes"`
			}
		}
	}
	if err := process.JSON(g.admin+"/debug/decisions/"+asked.id, &priced); err != nil {
		t.Fatal(err)
	}
	for _, a := range priced.Attempts[len(priced.Attempts)-1].Alternatives {
		if a.Chosen && math.Abs(a.Moved-2000*learned) > 0.05*a.Moved {
			t.Errorf("the transfer of 2,000 tokens was priced as %v bytes, want some %v", a.Moved, 2000*learned)
		}
	}
}
