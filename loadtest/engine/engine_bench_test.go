package engine

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// Budget: well below a millisecond of CPU for a short answer that is not streamed and
// some 20 us for each streamed token, so that a few engines and a gateway fit a laptop.
func BenchmarkChat(b *testing.B) {
	cfg := Default()
	cfg.TimeScale = 0
	e, err := Start(b.Context(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			b.Error(err)
		}
	}()
	keepAlive := &http.Client{Transport: &http.Transport{}}
	defer keepAlive.CloseIdleConnections()
	for name, body := range map[string]string{
		"short":                  `{"messages":[{"role":"user","content":"tell me of the river"}],"max_tokens":16,"ignore_eos":true}`,
		"streamed, 100 tokens":   `{"messages":[{"role":"user","content":"tell me of the river"}],"max_tokens":100,"ignore_eos":true,"stream":true}`,
		"prompt of 100 kB, cold": `{"messages":[{"role":"user","content":"` + strings.Repeat("the river and the city of stone ", 3125) + `"}],"max_tokens":1,"cache_salt":"@"}`,
	} {
		b.Run(name, func(b *testing.B) {
			n := 0
			for b.Loop() {
				n++
				salted := strings.Replace(body, `"@"`, `"`+newID("")+`"`, 1)
				req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, e.URL()+"/v1/chat/completions", strings.NewReader(salted))
				if err != nil {
					b.Fatal(err)
				}
				req.Header.Set("Content-Type", "application/json")
				resp, err := keepAlive.Do(req)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
					b.Fatal(resp.StatusCode, err)
				}
				resp.Body.Close()
			}
		})
	}
}
