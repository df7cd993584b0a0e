package connector

import (
	"bytes"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
)

// What both legs of a chat are sent, by each connector: the client's body, then prefill's
// answer where decode waits for it.
func TestLegs_Golden(t *testing.T) {
	missing := make(map[string]bool)
	for _, c := range byName {
		missing[c.name] = c.Pairs
	}
	datadriven.RunTest(t, "testdata/legs.txt", func(t *testing.T, d *datadriven.TestData) string {
		delete(missing, d.Cmd)
		client, answer, _ := strings.Cut(d.Input, "\n")
		body, err := api.ParseBody([]byte(client))
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		server := func(host string) *pools.Server {
			return &pools.Server{Spec: pools.Spec{URL: "http://" + host + ":8000", Connector: d.Cmd}}
		}
		tr := NewTransfer(Request{Dialect: api.Chat, Body: body}, server("10.0.0.1"), server("10.0.0.2"))
		if id := tr.ID; tr.Connector().requestID == nil {
			tr.ID = "t-1"
		} else {
			tr.ID = regexp.MustCompile(`[0-9a-f]{32}$`).ReplaceAllString(id, "UUID")
		}
		tr.bootstrapRooms, tr.engine = []int64{7}, engineRank{"e0", 0}
		var out strings.Builder
		fmt.Fprintf(&out, "id: %s\n", tr.ID)
		if prefill := tr.Connector().Prefill; prefill != nil {
			describe(&out, "prefill", prefill(tr))
		}
		leg := tr.Connector().decode(tr, answered(t, tr.dialect, answer))
		describe(&out, "decode", leg.request)
		fmt.Fprintf(&out, "has KV: %v\n", leg.hasKV)
		return out.String()
	})
	for name, without := range missing {
		if without {
			t.Errorf("testdata/legs.txt has no case of %s", name)
		}
	}
}

func describe(out *strings.Builder, leg string, r LegRequest) {
	fmt.Fprintf(out, "%s: %s\n", leg, bytes.TrimSpace(r.Body.Bytes()))
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		fmt.Fprintf(out, "  %s: %s\n", name, strings.Join(r.Header[name], ", "))
	}
}

// Prefill is asked for the prompt's token ids by the field that its API has for them, and only where
// they are wanted.
func TestOneToken_AsksForTokenIDsAsTheAPIDoes(t *testing.T) {
	for _, c := range []struct {
		dialect *api.Dialect
		field   string
	}{{api.Chat, "return_token_ids"}, {api.Completions, "return_token_ids"}, {api.Responses, "enable_response_messages"}} {
		body, err := api.ParseBody([]byte(`{"model":"m","stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		for _, ids := range []bool{false, true} {
			leg := oneToken(&Transfer{dialect: c.dialect, body: body, TokenIDs: ids})
			for _, field := range []string{"return_token_ids", "enable_response_messages"} {
				if got, _ := leg.Get(field).Bool(); got != (ids && field == c.field) {
					t.Errorf("%s, ids wanted %v: %s is %v", c.dialect.Name, ids, field, got)
				}
			}
		}
	}
}

// Prefill is asked for at least one token where the client wants at least one and prefill's token is the
// first of them: the token that ends an answer is not drawn then.
func TestOneToken_AtLeastOneWhereItBeginsTheAnswer(t *testing.T) {
	for _, c := range []struct {
		body   string
		wanted bool
		want   string
	}{
		{`{"min_tokens":5}`, true, "1"}, {`{"min_tokens":1}`, true, "1"}, {`{"min_tokens":0}`, true, ""}, {`{}`, true, ""},
		{`{"min_tokens":5}`, false, ""},
	} {
		body, err := api.ParseBody([]byte(c.body))
		if err != nil {
			t.Fatal(err)
		}
		leg := oneToken(&Transfer{dialect: api.Chat, body: body, First: First{Wanted: c.wanted}})
		if got := string(leg.Get("min_tokens")); got != c.want {
			t.Errorf("%s, it begins the answer %v: at least %q tokens, want %q", c.body, c.wanted, got, c.want)
		}
	}
}
