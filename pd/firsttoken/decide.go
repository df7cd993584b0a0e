// Package firsttoken decides whether the first token of an answer is prefill's, which has computed
// it in any case, or decode's, which would compute the same one again once it has the KV. It is
// pure: pd fills a Case from the request and its servers, and does what Decide says. cmd
// imports it for the setting.
package firsttoken

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
)

// Source says which leg says the first token of an answer.
type Source string

const (
	FromPrefill Source = "prefill" // where it is known to be that of an undivided run
	FromDecode  Source = "decode"  // always
)

// Validate reports what is wrong with it, nil if nothing.
func (f Source) Validate() error {
	if f != FromPrefill && f != FromDecode {
		return errors.New("first-token must be prefill or decode")
	}
	return nil
}

// Case is what decides about the first token of an answer.
type Case struct {
	Setting     Source
	Dialect     *api.Dialect
	Proved      bool     // both servers' engines are known to take it
	BlockTokens int      // of a KV block on both; 0: not known, or not the same
	Field       string   // of the request, for which decode has to say it
	Stops       []string // that end the answer
	Bounded     bool     // it is known how long the answer may be
	OneToken    bool     // the answer is one token long
	Continues   bool     // a stream that broke: it has its first token

	Said   *api.FirstToken        // by prefill; nil: it was not asked yet
	Handed connector.HandedBlocks // with it
}

// Use is what becomes of prefill's token.
type Use string

const (
	Unused  Use = "unused"  // decode says its own
	First   Use = "first"   // the answer begins with it
	All     Use = "all"     // the answer is no longer
	Redrawn Use = "redrawn" // decode says the same one again
)

// Decide says what becomes of prefill's token, and why. Before prefill is asked
// Unused is final, and everything else is what may come.
func (c *Case) Decide() (use Use, reason string) {
	switch {
	case c.Setting != FromPrefill:
		return Unused, "off"
	case c.Continues:
		return Unused, "continued"
	case c.Dialect != api.Chat && c.Dialect != api.Completions:
		return Unused, "api"
	case !c.Proved:
		return Unused, "engine"
	case c.Field != "":
		return Unused, "request"
	case c.Said == nil && c.OneToken:
		return All, "one_token"
	case c.BlockTokens == 0 && !c.OneToken:
		return Unused, "block_size"
	case !c.Bounded:
		return Unused, "length"
	case c.Said == nil:
		return First, ""
	}
	return c.judge()
}

// judge is Decide once prefill has answered. What depends on the token itself must not
// make decode draw another one: tokens that prefill cannot say would be rarer then than they
// should be.
func (c *Case) judge() (use Use, reason string) {
	said := c.Said
	blocks := 0
	if c.BlockTokens > 0 {
		blocks = (said.Prompt + c.BlockTokens - 1) / c.BlockTokens
	}
	switch {
	case c.OneToken && said.Choices == 1:
		return All, "one_token"
	case said.Choices != 1 || said.IDs != 1 || said.Prompt == 0:
		return Unused, "no_ids"
	case said.Prompt%c.BlockTokens == 0:
		// The token begins a KV block, of which prefill has none: decode's engine dies
		// (vllm nixl/base_worker.py, assert num_decode_blocks <= len(prefill_group)).
		return Unused, "block_boundary"
	case c.Handed.Tokens != said.Prompt || c.Handed.Blocks != blocks:
		return Unused, "hand_off"
	case said.Finish == "stop": // only from here on does it matter which token it is
		return All, "stop"
	case said.Finish != "length":
		return Redrawn, "finish_reason"
	case said.NotText:
		return Redrawn, "not_text"
	case said.Text == "" || endsInHalf(said.Text):
		return Redrawn, "no_text"
	case mayBeginStop(said.Text, c.Stops):
		return Redrawn, "stop_string" // of which decode would see the end alone
	}
	return First, "continues"
}

// Outcome is what became of the token of a prefill leg, and why.
type Outcome struct {
	Use    Use
	Reason string
	Field  string // of the request, where that is why
}

// String is empty where the servers or the API of the request are all that is why.
func (o Outcome) String() string {
	if o.Reason == "off" || o.Reason == "engine" || o.Reason == "api" {
		return ""
	}
	text := string(o.Use)
	if o.Reason != "" {
		text += ": " + o.Reason
	}
	if o.Field != "" {
		text += " (" + o.Field + ")"
	}
	return text
}

// endsInHalf reports whether a text ends in what stands for a part of a character.
func endsInHalf(text string) bool { return strings.HasSuffix(text, "\uFFFD") }

// mayBeginStop reports whether a text ends with the beginning of a stop string.
func mayBeginStop(text string, stops []string) bool {
	return slices.ContainsFunc(stops, func(stop string) bool {
		for n := 1; n < len(stop); n++ {
			if strings.HasSuffix(text, stop[:n]) {
				return true
			}
		}
		return false
	})
}

// Stops are the stop strings of a request.
func Stops(body api.Body) (stops []string) {
	if one, ok := body.Get("stop").String(); ok {
		return []string{one}
	}
	list, _ := body.Get("stop").Array()
	for _, v := range list {
		stop, _ := v.String()
		stops = append(stops, stop)
	}
	return stops
}

// IsGreedy reports whether each token is the likeliest one, and none is drawn.
func IsGreedy(body api.Body) bool {
	temperature, err := strconv.ParseFloat(string(body.Get("temperature")), 64)
	return err == nil && temperature == 0
}
