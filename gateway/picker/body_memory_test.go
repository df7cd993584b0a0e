package picker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pools"
)

// Bodies lie in memory that others lay in before, and that others get as soon as they are sent. Each reaches its
// server as its client wrote it all the same, however prompts are known, and an engine that is asked for the tokens of
// one, and reads it when it was sent long ago, reads that one. With the race detector what comes back is overwritten (package gateway).
func TestPicker_BodiesInUsedMemoryStayWhatTheyAre(t *testing.T) {
	const atOnce, eachAsks = 6, 8
	specs := []pools.Spec{{URL: upServer(t), Role: pools.Prefill, Connector: "llmd-sidecar"}, {URL: upServer(t), Role: pools.Decode, Connector: "llmd-sidecar"}}
	for _, mode := range []tokens.Mode{"", tokens.Approximate, tokens.Learned, tokens.Engine} {
		sent := make(chan struct{}) // all that are asked for
		f := newPicker(t, setup{specs: specs, pd: knowsPrompts(t, mode, func(ctx context.Context, _ string, body []byte) ([]byte, error) {
			select {
			case <-sent:
			case <-ctx.Done():
			}
			if err := readsOne(body); err != nil {
				t.Error(err)
			}
			return nil, errors.New("it answers nothing")
		})})
		f.eventually("both servers are up", func() bool {
			return !slices.ContainsFunc(f.fleet.Servers(), func(s *pools.Server) bool { return !s.Health().Up })
		})
		var all errgroup.Group
		for client := range atOnce {
			all.Go(func() error {
				for i := range eachAsks {
					body := chatOf(0, fmt.Sprintf(`,"stream":%v,"user":"%d"`, i%2 == 0, client)) // stream_options are added to every second one
					body = bytes.Replace(body, []byte("word "), []byte(strings.Repeat(fmt.Sprintf("%d.%d ", client, i), 20_000+1000*client)), 1)
					p := f.open()
					p.request(chatPath, body)
					to := p.routing()
					if i%3 == 0 { // it leaves before it has read all, or at once
						p.cancel()
						continue
					}
					if want := bytes.TrimSuffix(body, []byte("}")); !bytes.HasPrefix(to.body, want) || readsOne(to.body) != nil {
						return fmt.Errorf("%q: a body of %d bytes arrives as another of %d", mode, len(body), len(to.body))
					}
					p.head("200", "application/json")
					p.piece([]byte(`{"choices":[],"usage":{"prompt_tokens":30000,"completion_tokens":1}}`), true)
					p.rest()
				}
				return nil
			})
		}
		if err := all.Wait(); err != nil {
			t.Error(err)
		}
		close(sent)
		f.nothingHeld()
	}
}

// readsOne reports a body of more than one client, or of none.
func readsOne(body []byte) error {
	_, words, _ := bytes.Cut(body, []byte(`"content":"`))
	words, _, _ = bytes.Cut(words, []byte(` "`))
	all := strings.Split(string(words), " ")
	for _, word := range all {
		if word != all[0] || !strings.Contains(word, ".") {
			return fmt.Errorf("%.20q stands beside %.20q", word, all[0])
		}
	}
	return nil
}
