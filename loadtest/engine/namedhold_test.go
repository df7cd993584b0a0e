package engine

import (
	"encoding/json"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A decode that names what prefill does not hold for it waits until its own timeout,
// and prefill counts why.
func TestNamedHold_WhatDoesNotFitIsNotRead(t *testing.T) {
	type legs struct {
		connector       string
		prefill, decode func(p, d *Engine) (headers map[string]string, more fields)
		rejected        string
	}
	address := func(e *Engine) (host string, port int) {
		host, text, err := net.SplitHostPort(e.State().KVAddress)
		if err != nil {
			t.Fatal(err)
		}
		if port, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
		return host, port
	}
	params := func(f fields) fields { return fields{"max_tokens": 5, "kv_transfer_params": f} }
	id := func(id string) map[string]string { return map[string]string{"X-Request-Id": id} }
	mooncake := func(transfer string, engineID func(p *Engine) string) func(p, d *Engine) (map[string]string, fields) {
		return func(p, _ *Engine) (map[string]string, fields) {
			return nil, params(fields{"do_remote_prefill": true, "transfer_id": transfer,
				"remote_bootstrap_addr": "http://" + p.State().KVAddress, "remote_engine_id": engineID(p)})
		}
	}
	keep := func(*Engine, *Engine) (map[string]string, fields) {
		return nil, params(fields{"do_remote_decode": true, "transfer_id": "a"})
	}
	own := func(p *Engine) string { return p.State().EngineID }
	offloadAs := func(name string) func(p, d *Engine) (map[string]string, fields) {
		return func(p, _ *Engine) (map[string]string, fields) {
			host, port := address(p)
			return nil, params(fields{"remote_prefiller": fields{"kv_request_id": name, "remote_host": host, "remote_port": port}})
		}
	}
	nccl := func(reader func(p, d *Engine) string) func(p, d *Engine) (map[string]string, fields) {
		return func(p, d *Engine) (map[string]string, fields) {
			return id("___prefill_addr_" + p.State().KVAddress + "___decode_addr_" + reader(p, d) + "_0a"), nil
		}
	}
	toDecode := func(_, d *Engine) string { return d.State().KVAddress }
	for name, c := range map[string]legs{
		"mooncake":                   {ConnectorMooncake, keep, mooncake("a", own), ""},
		"mooncake, another transfer": {ConnectorMooncake, keep, mooncake("b", own), recomputeTimeout},
		"mooncake, an earlier life":  {ConnectorMooncake, keep, mooncake("a", func(*Engine) string { return "gone" }), rejectedEngine},
		"offload": {ConnectorOffload, func(_, _ *Engine) (map[string]string, fields) {
			return nil, params(fields{"remote_decoder": fields{"kv_request_id": "a"}})
		}, offloadAs("a"), ""},
		"offload, another id": {ConnectorOffload, func(_, _ *Engine) (map[string]string, fields) {
			return nil, params(fields{"remote_decoder": fields{"kv_request_id": "a"}})
		}, offloadAs("b"), recomputeTimeout},
		"p2p-nccl":                 {ConnectorP2PNCCL, nccl(toDecode), nccl(toDecode), ""},
		"p2p-nccl, to another one": {ConnectorP2PNCCL, nccl(func(p, _ *Engine) string { return p.State().KVAddress }), nccl(func(p, _ *Engine) string { return p.State().KVAddress }), rejectedReader},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			as := func(role string) func(*Config) {
				return func(cfg *Config) {
					cfg.Connector, cfg.Role = c.connector, role
					if c.rejected != "" { // decode waits in vain
						cfg.MeetTimeout = time.Second
					}
				}
			}
			p, d := start(t, as(RolePrefill)), start(t, as(RoleDecode))
			leg := func(e *Engine, of func(p, d *Engine) (map[string]string, fields), tokens int) {
				headers, more := of(p, d)
				req := request(t, t.Context(), e, "/v1/chat/completions", chatBody(60, tokens).with(more))
				for k, v := range headers {
					req.Header.Set(k, v)
				}
				resp, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if resp.StatusCode != 200 {
					t.Errorf("status %d", resp.StatusCode)
				}
			}
			leg(p, c.prefill, 1)
			leg(d, c.decode, 5)
			ps, ds := p.State(), d.State()
			if pulled := c.rejected == ""; pulled != (ps.HandoffsPulled == 1) || pulled != (ds.Recomputed == 0) {
				t.Errorf("%d pulled, %v computed again", ps.HandoffsPulled, ds.RecomputedByReason)
			}
			if c.rejected != "" && c.rejected != recomputeTimeout && ps.HandoffsRejectedByReason[c.rejected] != 1 {
				t.Errorf("rejected %v", ps.HandoffsRejectedByReason)
			}
		})
	}
}

// A push finds its decode by the request id, so both legs must carry one.
func TestNamedHold_APushGoesByTheRequestID(t *testing.T) {
	for id, pulled := range map[string]int{"same": 1, "another": 0} {
		as := func(role string) func(*Config) {
			return func(cfg *Config) {
				cfg.Connector, cfg.Role = ConnectorNIXLPush, role
				if pulled == 0 { // decode waits in vain
					cfg.MeetTimeout = 300 * time.Millisecond
				}
			}
		}
		p, d := start(t, as(RolePrefill)), start(t, as(RoleDecode))
		send := func(e *Engine, id string, body fields) (out chatAnswer) {
			req := request(t, t.Context(), e, "/v1/chat/completions", body)
			req.Header.Set("X-Request-Id", id)
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
				t.Fatal(err)
			}
			return out
		}
		first := send(p, "same", chatBody(60, 1).with(fields{"kv_transfer_params": fields{"do_remote_decode": true}}))
		var handed fields
		if err := json.Unmarshal(first.KVTransferParams, &handed); err != nil || handed["transfer_mode"] != "push" {
			t.Fatalf("%s, %v", first.KVTransferParams, err)
		}
		delete(handed, "remote_block_ids")
		send(d, id, chatBody(60, 5).with(fields{"kv_transfer_params": handed}))
		if s := p.State(); s.HandoffsPulled != pulled {
			t.Errorf("%s id: %d pulled", id, s.HandoffsPulled)
		}
	}
}

// The id of a response stands in its body: the header that names other requests does not bring its legs together.
func TestNamedHold_APushedResponseGoesByItsBody(t *testing.T) {
	for _, named := range []bool{true, false} {
		as := func(role string) func(*Config) {
			return func(cfg *Config) {
				cfg.Connector, cfg.Role = ConnectorNIXLPush, role
				if !named { // decode waits in vain
					cfg.MeetTimeout = 300 * time.Millisecond
				}
			}
		}
		p, d := start(t, as(RolePrefill)), start(t, as(RoleDecode))
		body := fields{"input": strings.Repeat("the river ", 39), "max_output_tokens": 1}
		var first struct {
			ID     string `json:"id"`
			Params fields `json:"kv_transfer_params"`
		}
		if status, raw := post(t, p, "/v1/responses", body.with(fields{"kv_transfer_params": fields{"do_remote_decode": true}})); status != 200 || json.Unmarshal(raw, &first) != nil {
			t.Fatalf("%d %s", status, raw)
		}
		delete(first.Params, "remote_block_ids")
		rest := body.with(fields{"kv_transfer_params": first.Params})
		if named {
			rest["request_id"] = first.ID
		}
		_, raw := post(t, d, "/v1/responses", rest)
		if pulled := p.State().HandoffsPulled == 1; pulled != named || named && !strings.Contains(string(raw), first.ID) {
			t.Errorf("named %v: pulled %v: %s", named, pulled, raw)
		}
	}
}
