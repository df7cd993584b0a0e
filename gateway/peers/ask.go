package peers

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	askTime  = time.Second // for the answer of one gateway
	maxAsked = 64          // gateways at once
	maxBytes = 16 << 20    // of one answer
)

// InstanceHeader names the gateway that answers, VersionHeader its build, on every answer of an admin
// port.
const (
	InstanceHeader = "X-Tandem-Instance"
	VersionHeader  = "X-Tandem-Version"
)

// Asker is a gateway's admin port among those of others, which it can ask.
type Asker struct {
	self      Peer
	directory *Directory // nil: it is alone
	client    *http.Client
	token     func() string // that all share, as it is now; "": none is asked for
}

// NewAsker returns what asks the admin ports of others, with proof of the token that they share, and
// by TLS as conf says of one more connection; nil where they speak plain text. Without a directory there are none.
func NewAsker(self Peer, d *Directory, token func() string, conf func() *tls.Config) *Asker {
	transport := &http.Transport{DisableKeepAlives: true}
	if conf != nil {
		transport.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			return (&tls.Dialer{Config: conf()}).DialContext(ctx, network, addr)
		}
	}
	return &Asker{self: self, directory: d, token: token, client: &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Self is the gateway itself.
func (a *Asker) Self() Peer { return a.self }

// Others are the gateways that it asks.
func (a *Asker) Others() []Peer {
	if a.directory == nil {
		return nil
	}
	return a.directory.Others()
}

// Answer is what another gateway said: a body, or why there is none.
type Answer struct {
	Peer
	Status int
	Body   []byte
	Err    error
}

// Ask gets a path of all others' admin ports at once, and returns what each answered, by their names.
// One that does not answer costs a second.
func (a *Asker) Ask(ctx context.Context, path string) []Answer {
	others := a.Others()
	answers := make([]Answer, len(others))
	var asked sync.WaitGroup
	free := make(chan struct{}, maxAsked)
	for i, peer := range others {
		free <- struct{}{}
		asked.Go(func() {
			defer func() { <-free }()
			answers[i] = Answer{Peer: peer}
			answers[i].Status, answers[i].Body, answers[i].Err = a.ask(ctx, peer, path)
		})
	}
	asked.Wait()
	return answers
}

func (a *Asker) ask(ctx context.Context, peer Peer, path string) (status int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, peer.Admin+path, nil)
	if err != nil {
		return 0, nil, fmt.Errorf("ask another gateway: %w", err)
	}
	if token := a.token(); token != "" {
		req.Header.Set("Authorization", "Bearer "+Proof(token, peer.Admin))
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if by := resp.Header.Get(InstanceHeader); by != peer.ID {
		return 0, nil, fmt.Errorf("%s is not its admin port: %q answered with status %d; does --admin name an address that the other gateways reach?", peer.Admin, by, resp.StatusCode)
	}
	if body, err = io.ReadAll(io.LimitReader(resp.Body, maxBytes)); err != nil {
		return 0, nil, fmt.Errorf("read its answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusNotFound {
		return 0, nil, fmt.Errorf("it answered %s: %s", resp.Status, strings.TrimSpace(string(body[:min(len(body), 200)])))
	}
	return resp.StatusCode, body, nil
}

// Proof shows at one admin port that its caller knows the token of all, and nothing to any other
// port: who can write addresses into Redis learns nothing by it.
func Proof(token, admin string) string {
	mac := hmac.New(sha256.New, []byte(token))
	mac.Write([]byte("tandem gateway at " + admin))
	return hex.EncodeToString(mac.Sum(nil))
}

// Handler is the own admin port: it names itself in every answer, and lets other gateways read open
// that show a proof for its address; all others meet guarded.
func (a *Asker) Handler(open, guarded http.Handler) http.Handler {
	isPeer := func(r *http.Request) bool {
		token := a.token()
		if token == "" {
			return false
		}
		want := []byte("Bearer " + Proof(token, a.self.Admin))
		return subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), want) == 1
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(InstanceHeader, a.self.ID)
		w.Header().Set(VersionHeader, a.self.Version)
		if r.Method == http.MethodGet && isPeer(r) {
			open.ServeHTTP(w, r)
			return
		}
		guarded.ServeHTTP(w, r)
	})
}

// Read reads an answer's JSON, false where there is none to read. Why a gateway did not answer is
// written to silent, by its name.
func (a *Answer) Read(into any, silent map[string]string) bool {
	err := a.Err
	if err == nil && a.Status == http.StatusOK {
		if err = json.Unmarshal(a.Body, into); err != nil {
			err = fmt.Errorf("read its JSON: %w", err)
		}
	}
	if err != nil {
		silent[a.ID] = err.Error()
	}
	return err == nil && a.Status == http.StatusOK
}
