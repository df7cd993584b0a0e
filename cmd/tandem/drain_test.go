package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// run is what a command prints, and how it ends.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out strings.Builder
	root := rootCommand()
	root.SetOut(&out)
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

// drain --wait ends when the server has no request any more, on neither leg and of no gateway, and says what it
// waits for.
func TestDrain_WaitsForTheLastRequest(t *testing.T) {
	var asked atomic.Int64
	var drained atomic.Bool
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method + " " + r.URL.Path {
		case "POST /drain/10.0.0.1:8000/dp1":
			drained.Store(true)
			w.WriteHeader(http.StatusNoContent)
		case "GET /debug/servers":
			legs := []string{
				`{"prefill":0,"decode":0},"drain_pending":true`, `{"prefill":1,"decode":1}`, `{"prefill":0,"decode":1}`, `{"prefill":0,"decode":0}`,
			}
			_, _ = w.Write([]byte(`[{"id":"10.0.0.1:8000","in_flight_of_all":{"decode":9}},{"id":"10.0.0.1:8000/dp1","draining":true,"in_flight_of_all":` + legs[asked.Add(1)-1] + `}]`))
		default:
			http.NotFound(w, r)
		}
	}))
	defer admin.Close()
	out, err := run(t, "drain", "10.0.0.1:8000/dp1", "--wait", "--admin", admin.URL)
	if err != nil || asked.Load() != 4 || !drained.Load() {
		t.Errorf("%v after %d looks, drained: %v", err, asked.Load(), drained.Load())
	}
	if want := "10.0.0.1:8000/dp1 has requests of this gateway: 0; other gateways may not know yet that it drains\n10.0.0.1:8000/dp1 has requests: 2\n10.0.0.1:8000/dp1 has requests: 1\n10.0.0.1:8000/dp1 has no request any more\n"; out != want {
		t.Errorf("it says %q", out)
	}
}

// A server that leaves the configuration may still send: the command does not end as if it had no request any more.
func TestDrain_AServerThatLeavesTheConfigurationIsNotWithoutRequests(t *testing.T) {
	var asked atomic.Int64
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPost:
			w.WriteHeader(http.StatusNoContent)
		case asked.Add(1) == 1:
			_, _ = w.Write([]byte(`[{"id":"a:1","draining":true,"in_flight_of_all":{"prefill":1,"decode":2}}]`))
		default:
			_, _ = w.Write([]byte(`[]`))
		}
	}))
	defer admin.Close()
	for _, had := range []string{"it had 3 when", "how many requests"} { // the second time it is gone at the first look
		if _, err := run(t, "drain", "a:1", "--wait", "--admin", admin.URL); err == nil || !strings.Contains(err.Error(), "has left the configuration") || !strings.Contains(err.Error(), had) {
			t.Errorf("%v, want %q", err, had)
		}
	}
}

// A server that is not there, or that another operator sends requests again, ends the command, each
// with its word.
func TestDrain_EndsWhereThereIsNothingToWaitFor(t *testing.T) {
	servers := ""
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/debug/servers":
			_, _ = w.Write([]byte(servers))
		case r.URL.Path != "/drain/a:1":
			http.Error(w, "there is no such server", http.StatusNotFound)
		case r.Method == http.MethodDelete && servers == "drained by the file":
			http.Error(w, "a:1 goes on draining: the file says so", http.StatusConflict)
		case r.Method == http.MethodDelete:
			w.WriteHeader(http.StatusNoContent)
		case r.Method == http.MethodPost:
			w.WriteHeader(http.StatusNoContent)
		}
	}))
	defer admin.Close()
	for _, c := range []struct{ servers, server, flag, out, err string }{
		{`[]`, "b:1", "--wait", "", "there is no server b:1"},
		{`[{"id":"a:1","in_flight_of_all":{"decode":1}}]`, "a:1", "--wait", "", "does not drain any more"},
		{`[{"id":"a:1","draining":true,"in_flight_of_all":{"decode":1}}]`, "a:1", "--undo", "a:1 takes requests again\n", ""},
		{"drained by the file", "a:1", "--undo", "", "a:1 goes on draining: the file says so"},
		{`nonsense`, "a:1", "--wait", "", "read the gateway's answer"},
	} {
		servers = c.servers
		out, err := run(t, "drain", c.server, c.flag, "--admin", admin.URL)
		if out != c.out || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s of %s: %q, %v", c.flag, c.server, out, err)
		}
	}
}

// Without --wait, and with --undo, the command says what the server does now, and where other gateways may not know yet:
// while Redis is down they go on as before.
func TestDrain_SaysWhatTheServerDoesNow(t *testing.T) {
	pending := true
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/debug/servers" {
			_, _ = fmt.Fprintf(w, `[{"id":"b:1"},{"id":"a:1","draining":true,"drain_pending":%v}]`, pending)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	defer admin.Close()
	for _, c := range []struct {
		server  string
		pending bool
		flags   []string
		out     string
	}{
		{"a:1", true, nil, "a:1 drains here; other gateways may not know yet that it drains (--wait waits until they do)\n"},
		{"a:1", true, []string{"--undo"}, "a:1 takes requests again here; other gateways may not know yet\n"},
		{"a:1", false, nil, "a:1 takes no new requests (--wait waits until it has none)\n"},
		{"http://a:1/", false, nil, "a:1 takes no new requests (--wait waits until it has none)\n"},
		{"a:1", false, []string{"--undo"}, "a:1 takes requests again\n"},
	} {
		pending = c.pending
		out, err := run(t, append([]string{"drain", c.server, "--admin", admin.URL}, c.flags...)...)
		if out != c.out || err != nil {
			t.Errorf("%s %v, pending %v: %q, %v", c.server, c.flags, c.pending, out, err)
		}
	}
}

// A command without its argument says what is missing.
func TestCommands_SayWhichArgumentIsMissing(t *testing.T) {
	for command, want := range map[string]string{
		"drain":  "say which server: tandem drain SERVER [flags]; 0 were given",
		"replay": "say which file has the log: tandem replay",
	} {
		if _, err := run(t, command); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", command, err, want)
		}
	}
	if _, err := run(t, "drain", "a:1", "b:1"); err == nil || !strings.Contains(err.Error(), "2 were given") {
		t.Errorf("two servers: %v", err)
	}
}
