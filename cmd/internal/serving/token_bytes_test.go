package serving

import (
	"testing"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// A token of latent attention has a sixtieth of the KV that is assumed: the gateway takes the bytes from what
// decode's engine says that it got, for servers that have shown nothing too. What is configured counts before that.
func TestTokenBytes_AreWhatTransfersShow(t *testing.T) {
	t.Parallel()
	const each = 2304
	for name, configured := range map[string]int{"learned": 0, "configured": 4096} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, shape{
				prefill: 1, decode: 2,
				engine: func(cfg *engine.Config) { cfg.KVBytesPerToken = each },
				config: func(cfg *config) { cfg.cost.PairsFirst, cfg.cost.KVBytesPerToken = true, configured },
			})
			perToken := func(thousands int) (bytes float64) {
				t.Helper()
				got := c.post("/v1/chat/completions", promptOf(thousands, ""))
				if got.status != 200 {
					t.Fatalf("status %d: %s", got.status, got.body)
				}
				attempt := gjson.Get(c.get("/debug/decisions/"+got.header.Get("X-Request-Id")).body, "attempts.0")
				for _, a := range attempt.Get("alternatives").Array() {
					if a.Get("prefill").Exists() && a.Get("decode_cached").Int() == 0 {
						bytes = max(bytes, a.Get("moved_bytes").Float()/float64(attempt.Get("prompt_tokens").Int()/16*16))
					}
				}
				return bytes
			}
			want := float64(configured)
			if configured == 0 {
				want = 128 << 10
			}
			if got := perToken(3); got != want {
				t.Errorf("at first a token is taken to have %v bytes, want %v", got, want)
			}
			eventually(t, "decode's engine shows what it got", func() bool { return c.series("tandem_engine_kv_bytes_per_token") == 1 })
			if configured == 0 {
				want = each
			}
			for thousands := range 3 { // on whichever server
				if got := perToken(4 + thousands); got < want || got > 1.01*want { // blocks move whole
					t.Errorf("then %v, want %v", got, want)
				}
			}
		})
	}
}
