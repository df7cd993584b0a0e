package access

import (
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

var testTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const testSecret = "secret: 0123456789abcdef0123456789abcdef\n"

// entry is a key in a file.
func entry(key string, lines ...string) string {
	return "  - sha256: " + Hash(key) + "\n    " + strings.Join(lines, "\n    ") + "\n"
}

// open returns an access control with the keys of a file.
func open(t *testing.T, entries ...string) *Control {
	t.Helper()
	c := New(DefaultConfig(), nil)
	reload(t, c, entries...)
	return c
}

func reload(t *testing.T, c *Control, entries ...string) {
	t.Helper()
	keys, err := ReadKeys([]byte(testSecret+"keys:\n"+strings.Join(entries, "")), c.cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.Apply(keys)
}

func TestKeys_OnlyThoseInTheFileOpen(t *testing.T) {
	c := New(DefaultConfig(), nil)
	if k := c.Find(nil); k == nil || k.Tenant != "" || k.Salt != "" || c.Class(k.Class) != "standard" {
		t.Errorf("without keys: %+v", k)
	}
	reload(t, c, entry("sk-ada", "tenant: ada", "class: interactive", "models: [llama, qwen*]"), entry("sk-bob", "tenant: bob"), entry("sk-ada-2", "tenant: ada"))
	ada, again, bob := c.Find([]byte("sk-ada")), c.Find([]byte("sk-ada-2")), c.Find([]byte("sk-bob"))
	if ada == nil || ada.Tenant != "ada" || ada.Class != 0 || bob == nil || bob.Class != 1 {
		t.Fatalf("%+v, %+v", ada, bob)
	}
	for _, wrong := range []string{"", "sk-ad", "sk-ada ", "SK-ADA", Hash("sk-ada"), ada.ID} {
		if k := c.Find([]byte(wrong)); k != nil {
			t.Errorf("%q opens as %s", wrong, k.Tenant)
		}
	}
	if ada.Salt != again.Salt || ada.Salt == bob.Salt || len(ada.Salt) != 32 {
		t.Errorf("salts %s, %s of one tenant, %s of another", ada.Salt, again.Salt, bob.Salt)
	}
	for model, may := range map[string]bool{"llama": true, "llama2": false, "qwen": true, "qwen/8b": true, "": false} {
		if ada.May(model) != may || !bob.May(model) {
			t.Errorf("model %q: %v, of a key for all: %v", model, ada.May(model), bob.May(model))
		}
	}
	reload(t, c, entry("sk-bob", "tenant: bob"))
	if c.Find([]byte("sk-ada")) != nil || c.Find([]byte("sk-bob")) == nil {
		t.Error("a reload did not replace the keys")
	}
}

func TestControl_SaysHowManyKeysAndTenantsThereAre(t *testing.T) {
	c := New(DefaultConfig(), nil)
	if !c.AllowsAnonymous() || c.Len() != 0 || c.quota(Hash("sk-ada")[:16]) != nil {
		t.Errorf("without keys: open %v, %d keys", c.AllowsAnonymous(), c.Len())
	}
	reload(t, c, entry("sk-ada", "tenant: ada"), entry("sk-ada-2", "tenant: ada"), entry("sk-bob", "tenant: bob"))
	if c.AllowsAnonymous() || c.Len() != 3 {
		t.Errorf("with three keys: open %v, %d keys", c.AllowsAnonymous(), c.Len())
	}
	if keys, tenants := c.keys.Load().Len(); keys != 3 || tenants != 2 {
		t.Errorf("%d keys of %d tenants, want 3 of 2", keys, tenants)
	}
	ada := c.Find([]byte("sk-ada"))
	if q := c.quota(ada.ID); q == nil || q != ada.quota || c.quota("nobody") != nil {
		t.Error("a quota is not found by the ID of its key")
	}
	c.Apply(nil)
	if !c.AllowsAnonymous() || c.Len() != 0 {
		t.Errorf("once the keys are gone: open %v, %d keys", c.AllowsAnonymous(), c.Len())
	}
}

// Two reloads at once give a key one quota: a request with the key of one reload and one that
// finds that of the other use up the same limits.
func TestControl_ReloadsAtOnceKeepOneQuotaForEachKey(t *testing.T) {
	for range 50 {
		var files [2]*Keys
		for i := range files {
			files[i] = newKeys()
			for n := range 1000 {
				files[i].add(&Key{ID: strconv.Itoa(n)})
			}
		}
		c := New(DefaultConfig(), nil)
		begin := make(chan struct{})
		var reloads sync.WaitGroup
		for _, keys := range files {
			reloads.Go(func() {
				<-begin
				c.Apply(keys)
			})
		}
		close(begin)
		reloads.Wait()
		for id, key := range files[0].byID {
			if key.quota != files[1].byID[id].quota {
				t.Fatalf("key %s has two quotas", id)
			}
		}
	}
}

func TestKeys_AFileWithAMistakeIsRefusedWithoutNamingAKey(t *testing.T) {
	good := entry("sk-ada", "tenant: ada")
	for name, x := range map[string]struct{ content, want string }{
		"no secret":           {"keys:\n" + good, "secret"},
		"a short secret":      {"secret: abc\nkeys:\n" + good, "secret"},
		"a key for its hash":  {testSecret + "keys:\n  - sha256: sk-very-private\n    tenant: a\n", "key 1: sha256"},
		"twice":               {testSecret + "keys:\n" + good + good, "key 2"},
		"no tenant":           {testSecret + "keys:\n" + entry("k", "class: batch"), "tenant"},
		"an unknown class":    {testSecret + "keys:\n" + entry("k", "tenant: a", "class: royal"), `"royal"`},
		"an unknown may-set":  {testSecret + "keys:\n" + entry("k", "tenant: a", "may-set: [everything]"), "everything"},
		"a negative limit":    {testSecret + "keys:\n" + entry("k", "tenant: a", "requests-per-minute: -1"), "requests-per-minute"},
		"an unknown field":    {testSecret + "keys:\n" + entry("k", "tenant: a", "colour: red"), "unknown field"},
		"a key for a field":   {testSecret + "keys:\n" + entry("k", "tenant: a", "sk-very-private: x"), "line 5: unknown field"},
		"a field twice":       {testSecret + "keys:\n" + entry("k", "tenant: a", "tenant: b"), "line 5: a field appears twice"},
		"a huge number":       {testSecret + "keys:\n" + entry("k", "tenant: a", "requests-per-minute: 99999999999999999999"), "line 5: requests-per-minute: the number is too large"},
		"not a file of keys":  {"3", "mapping"},
		"entries alone":       {good, `line 1: want "secret: ..." and "keys:" above the entries`}, // "tandem keys new > keys.yaml"
		"a limit in words":    {testSecret + "keys:\n" + entry("k", "tenant: a", "requests-per-minute: sk-very-private"), "line 5: requests-per-minute: want a whole number"},
		"a deadline in words": {testSecret + "keys:\n" + entry("k", "tenant: a", "deadline: sk-very-private"), "key 1: deadline: want a time with its unit, such as 30s"},
		"no unit":             {testSecret + "keys:\n" + entry("k", "tenant: a", "deadline: 10"), "key 1: deadline: want a time with its unit, such as 30s"},
		"a number for a list": {testSecret + "keys:\n" + entry("k", "tenant: a", "may-set: 3"), "line 5: may-set: "},
		"a list for a time":   {testSecret + "keys:\n" + entry("k", "tenant: a", "ttft-slo: [sk-very-private]"), "line 5: ttft-slo: want a single value"},
	} {
		_, err := ReadKeys([]byte(x.content), DefaultConfig())
		if err == nil || !strings.Contains(err.Error(), x.want) || strings.Contains(err.Error(), "sk-very-private") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzReadKeys(f *testing.F) {
	f.Add([]byte(testSecret + "keys:\n" + entry("k", "tenant: a", "models: [a, b*]", "deadline: 30s", "may-set: [priority]")))
	f.Fuzz(func(t *testing.T, content []byte) {
		keys, err := ReadKeys(content, DefaultConfig())
		if err == nil {
			New(DefaultConfig(), nil).Apply(keys)
		}
	})
}

func TestGrant_MoreNeedsLeaveAndLessIsFree(t *testing.T) {
	c := open(t, entry("plain", "tenant: a", "deadline: 10s"), entry("trusted", "tenant: a", "deadline: 10s", "may-set: [priority, objectives, deadline]"),
		entry("bought", "tenant: a", "deadline: 10s", "ttft-slo: 1s", "itl-slo: 200ms"), entry("both", "tenant: a", "deadline: 10s", "ttft-slo: 1s", "itl-slo: 200ms", "may-set: [objectives]"))
	for _, x := range []struct {
		key, name string
		requested RequestedPolicy
		class     int
		deadline  time.Duration
		ttft      time.Duration
	}{
		{"plain", "nothing asked", RequestedPolicy{}, 1, 10 * time.Second, 0},
		{"plain", "a higher class", RequestedPolicy{Priority: "interactive"}, 1, 10 * time.Second, 0},
		{"plain", "a lower class", RequestedPolicy{Priority: "batch"}, 2, 10 * time.Second, 0},
		{"plain", "a shorter deadline", RequestedPolicy{Deadline: "500"}, 1, 500 * time.Millisecond, 0},
		{"plain", "a longer deadline", RequestedPolicy{Deadline: "60000"}, 1, 10 * time.Second, 0},
		{"plain", "an objective", RequestedPolicy{TTFT: "100"}, 1, 10 * time.Second, 0},
		{"trusted", "a higher class", RequestedPolicy{Priority: "interactive"}, 0, 10 * time.Second, 0},
		{"trusted", "a longer deadline", RequestedPolicy{Deadline: "60000"}, 1, time.Minute, 0},
		{"trusted", "an objective", RequestedPolicy{TTFT: "100", ITL: "20"}, 1, 10 * time.Second, 100 * time.Millisecond},
		{"bought", "nothing asked", RequestedPolicy{}, 1, 10 * time.Second, time.Second},
		{"bought", "another objective", RequestedPolicy{TTFT: "100", ITL: "20"}, 1, 10 * time.Second, time.Second},
		{"both", "nothing asked", RequestedPolicy{}, 1, 10 * time.Second, time.Second},
		{"both", "another objective", RequestedPolicy{TTFT: "100", ITL: "20"}, 1, 10 * time.Second, 100 * time.Millisecond},
	} {
		got, err := c.PolicyFor(c.Find([]byte(x.key)), x.requested, testTime)
		if want := (Policy{Class: x.class, Tenant: "a", Deadline: testTime.Add(x.deadline), TTFT: x.ttft, ITL: x.ttft / 5}); err != nil || got != want {
			t.Errorf("%s of a %s key: %+v, %v; want %+v", x.name, x.key, got, err, want)
		}
	}
	for name, w := range map[string]RequestedPolicy{"an unknown class": {Priority: "royal"}, "words": {Deadline: "soon"}, "nothing": {Deadline: "0"}, "a century": {Deadline: "3155760000000"}} {
		var unread *HeaderError
		if _, err := c.PolicyFor(c.Find([]byte("plain")), w, testTime); !errors.As(err, &unread) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
