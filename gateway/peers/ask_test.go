package peers

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// answering is a handler of one answer.
func answering(status int, body string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	})
}

func always(token string) func() string { return func() string { return token } }

// adminPort serves the admin port of a gateway, which others may read with a proof of the token.
func adminPort(t *testing.T, id, token string, open http.Handler) Peer {
	t.Helper()
	var handler http.Handler
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.ServeHTTP(w, r) }))
	t.Cleanup(server.Close)
	self := Peer{ID: id, Admin: server.URL, Version: "v1"}
	handler = NewAsker(self, nil, always(token), nil).Handler(open, answering(http.StatusUnauthorized, "no token"))
	return self
}

// askerOf asks some gateways.
func askerOf(token string, others ...Peer) *Asker {
	d := NewDirectory(nil, "", Peer{ID: "self"}, slog.New(slog.DiscardHandler))
	for _, p := range others {
		d.seen[p.ID] = sighting{peer: p}
	}
	return NewAsker(Peer{ID: "self"}, d, always(token), nil)
}

// All are asked at once, by the token that they share. What does not answer costs a second and is
// named with its reason, as is an address at which another gateway answers, and one that refuses.
func TestAsk_NamesThoseThatDoNotAnswer(t *testing.T) {
	silent := make(chan struct{})
	defer close(silent)
	hangs := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-silent })
	good := adminPort(t, "good", "t0ken", answering(200, `{"id":"x"}`))
	gone := httptest.NewServer(nil)
	gone.Close()
	a := askerOf("t0ken",
		good, adminPort(t, "empty", "t0ken", answering(404, "")), adminPort(t, "hangs", "t0ken", hangs), adminPort(t, "hangs too", "t0ken", hangs),
		adminPort(t, "other token", "another", answering(200, "{}")), adminPort(t, "garbage", "t0ken", answering(200, "{")),
		adminPort(t, "moved", "t0ken", http.RedirectHandler(good.Admin, http.StatusFound)),
		Peer{ID: "gone", Admin: gone.URL}, Peer{ID: "loopback", Admin: good.Admin})
	start, why, read := time.Now(), map[string]string{}, ""
	for _, answer := range a.Ask(t.Context(), "/path") {
		var body struct{ ID string }
		if answer.Read(&body, why) {
			read += answer.ID + " " + body.ID
		}
	}
	if took := time.Since(start); took < askTime || took > 8*askTime {
		t.Errorf("took %v", took)
	}
	if read != "good x" {
		t.Errorf("read: %q", read)
	}
	for id, want := range map[string]string{
		"hangs": "deadline", "hangs too": "deadline", "other token": "401", "garbage": "JSON", "moved": "302", "gone": "refused", "loopback": `"good" answered`,
	} {
		if !strings.Contains(why[id], want) {
			t.Errorf("%s: %q, want %q", id, why[id], want)
		}
		delete(why, id)
	}
	if len(why) > 0 {
		t.Errorf("others are named: %v", why)
	}
}

// A gateway that is alone asks nobody.
func TestAsk_AloneThereIsNobody(t *testing.T) {
	if got := NewAsker(Peer{ID: "self"}, nil, always(""), nil).Ask(t.Context(), "/path"); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}

// A proof lets another gateway read at the address that it was made for, and do nothing else: who is
// sent one learns neither the token nor what opens another port. Without a token none is asked for.
func TestHandler_AProofOpensOneAddressForReading(t *testing.T) {
	port := adminPort(t, "a", "t0ken", answering(200, "open"))
	for _, x := range []struct {
		name, method, bearer string
		want                 int
	}{
		{"proof", "GET", Proof("t0ken", port.Admin), 200},
		{"proof, to change something", "POST", Proof("t0ken", port.Admin), 401},
		{"proof of another address", "GET", Proof("t0ken", "http://elsewhere"), 401},
		{"proof by another token", "GET", Proof("token", port.Admin), 401},
		{"nothing", "GET", "", 401},
	} {
		if status := statusOf(t, x.method, port.Admin, x.bearer); status != x.want {
			t.Errorf("%s: %d, want %d", x.name, status, x.want)
		}
	}
	open := adminPort(t, "b", "", answering(200, "open"))
	if status := statusOf(t, "GET", open.Admin, Proof("", open.Admin)); status != 401 {
		t.Errorf("a proof by no token: %d", status)
	}
}

func statusOf(t *testing.T, method, url, bearer string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+bearer)
	resp, err := (&http.Client{Timeout: time.Minute}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.Header.Get(InstanceHeader) == "" || resp.Header.Get(VersionHeader) != "v1" {
		t.Errorf("%s %s names no gateway", method, url)
	}
	return resp.StatusCode
}
