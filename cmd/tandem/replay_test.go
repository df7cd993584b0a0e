package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A log goes through the configuration's servers and settings, though none of them answers; lines
// without tokens are left out, and said.
func TestReplay_PrintsWhereRequestsWouldGo(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	config := write("tandem.yaml", "pairs-first: true\nprefill: [{url: \"http://192.0.2.1:1\", rack: r1}]\ndecode: [{url: \"http://192.0.2.2:1\", rack: r1}]\n")
	log := write("log.jsonl", `{"timestamp":0,"input_length":1500,"output_length":10,"hash_ids":[1,2,3]}
{"timestamp":5000,"input_length":2000,"output_length":10,"hash_ids":[1,2,4,5]}
{"timestamp":6000,"input_length":0,"output_length":0}
`)
	out, err := run(t, "replay", log, "-c", config, "--each")
	for _, want := range []string{
		"5s    2000    1024      10  192.0.2.1:1  192.0.2.2:1      0s", "192.0.2.1:1        2    3500  29.3 %",
		"2 requests in 5s: decode alone 0, no server 0, waited in vain 0\n", "\n1 lines without tokens are left out\n",
	} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%v: no %q in\n%s", err, want, out)
		}
	}
	if alone, err := run(t, "replay", log, "-c", config, "--pairs-first=false", "--link-rack", "1e6"); err != nil || !strings.Contains(alone, "decode alone 2") || strings.Contains(alone, "first token\n") {
		t.Errorf("over a link of 1 MB a second: %v\n%s", err, alone)
	}
	if _, err := run(t, "replay", filepath.Join(dir, "none"), "-c", config); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a log that is not there: %v", err)
	}
	if _, err := run(t, "replay", log, "--kubernetes-pods", "app=vllm"); err == nil || !strings.Contains(err.Error(), "named by address") {
		t.Errorf("no server is named by address: %v", err)
	}
}
