package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/gateway/access"
)

func TestKeysCommand_MakesEntriesThatOpen(t *testing.T) {
	run := func(in string, args ...string) (out, errs string) {
		cmd := keysCommand()
		var o, e bytes.Buffer
		cmd.SetArgs(args)
		cmd.SetIn(strings.NewReader(in))
		cmd.SetOut(&o)
		cmd.SetErr(&e)
		if err := cmd.Execute(); err != nil {
			t.Fatal(err)
		}
		return o.String(), e.String()
	}
	entry, said := run("", "new", "--tenant", "ada")
	key := said[strings.Index(said, "sk-"):]
	hashed, _ := run(key, "hash", "--tenant", "ada")
	if entry != hashed || strings.Contains(entry, "sk-") {
		t.Errorf("new prints\n%shash prints\n%s", entry, hashed)
	}
	keys, err := access.ReadKeys([]byte("secret: 0123456789abcdef0123456789abcdef\nkeys:\n"+entry), access.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	d := access.New(access.DefaultConfig(), nil)
	d.Apply(keys)
	if k := d.Find([]byte(strings.TrimSpace(key))); k == nil || k.Tenant != "ada" {
		t.Error("the key does not open")
	}
}
