package main

import (
	"bufio"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// A server that drains gets no request within a second, and its streams finish.
func TestDrain_OfAServer(t *testing.T) {
	for _, by := range []string{"api", "file"} {
		t.Run(by, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "tandem.yaml")
			c := newCluster(t, shape{prefill: 1, decode: 2, engine: func(cfg *engine.Config) { cfg.TimeScale = 1 }})
			write := func(drain string) {
				text := "prefill: [" + c.prefill[0].URL() + "]\ndecode:\n- " + c.decode[1].URL() + "\n- {url: " + c.decode[0].URL() + drain + "}\n"
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write("")
			flags := pflag.NewFlagSet("", pflag.ContinueOnError)
			stop, err := c.node.followConfig(t.Context(), file, contentHash(file), flags)
			if err != nil {
				t.Fatal(err)
			}
			defer stop()
			id := strings.TrimPrefix(c.decode[0].URL(), "http://")
			set := map[string]map[bool]func(){
				"api": {
					true:  func() { c.raw(http.MethodPost, c.admin+"/drain/"+id) },
					false: func() { c.raw(http.MethodDelete, c.admin+"/drain/"+id) },
				},
				"file": {true: func() { write(", drain: true") }, false: func() { write("") }},
			}[by]

			// A stream on each server, so that one is on the server that drains.
			var streams []*http.Response
			for range 4 {
				conn := c.dialRequest(chatBodyOf(150, `,"stream":true,"ignore_eos":true`))
				defer func() { _ = conn.Close() }()
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Fatal(err)
				}
				streams = append(streams, resp)
			}
			if c.decode[0].State().Running == 0 {
				t.Fatal("no stream on the server that is to drain")
			}
			set[true]()
			drains := func() bool {
				return gjson.Get(c.get("/debug/servers").body, `#(id=="`+id+`").draining`).Bool()
			}
			start := time.Now()
			eventually(t, "it drains", drains)
			if took := time.Since(start); took > time.Second {
				t.Errorf("it took %v", took)
			}
			before := len(ofClients(c.decode[0]))
			for range 5 {
				if got := c.post("/v1/chat/completions", chatBodyOf(2, "")); got.status != 200 || got.header.Get("X-Tandem-Decode") == id {
					t.Errorf("%d on %s", got.status, got.header.Get("X-Tandem-Decode"))
				}
			}
			if n := len(ofClients(c.decode[0])) - before; n != 0 {
				t.Errorf("%d requests reached it", n)
			}
			for _, resp := range streams {
				if got := readResponse(resp); got.err != nil || got.events[len(got.events)-1] != "[DONE]" {
					t.Errorf("a stream ended with %v", got.err)
				}
			}
			set[false]()
			eventually(t, "it takes requests again", func() bool {
				c.post("/v1/chat/completions", chatBodyOf(2, ""))
				return !drains() && len(ofClients(c.decode[0])) > before
			})
		})
	}
}

func TestDrain_OfNobody(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1})
	if got := c.raw(http.MethodPost, c.admin+"/drain/10.0.0.9:1"); got.status != 404 {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := c.raw(http.MethodGet, c.admin+"/drain/10.0.0.9:1"); got.status != 405 {
		t.Errorf("%d %s", got.status, got.body)
	}
}
