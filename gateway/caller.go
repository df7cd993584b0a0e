package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/tandem-gateway/tandem/gateway/access"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/messages"
	"github.com/tandem-gateway/tandem/pools"
)

// Errors of authentication.
var (
	errNoKey      = errors.New("the request carries no API key")
	errUnknownKey = errors.New("the request's API key is not known")
)

// authenticate finds the key that a request carries, as OpenAI's or as Anthropic's clients
// send it.
func (s *Server) authenticate(c *fiber.Ctx) (*access.Key, error) {
	sent := sentKey(c)
	if key := s.access.Find(sent); key != nil {
		return key, nil
	}
	if len(sent) == 0 {
		return nil, errNoKey
	}
	return nil, errUnknownKey
}

// sentKey aliases Fiber's buffer.
func sentKey(c *fiber.Ctx) []byte {
	const scheme = "Bearer "
	if auth := c.Request().Header.Peek(fiber.HeaderAuthorization); len(auth) > len(scheme) && bytes.EqualFold(auth[:len(scheme)], []byte(scheme)) {
		return bytes.TrimSpace(auth[len(scheme):])
	}
	return c.Request().Header.Peek("X-Api-Key")
}

// applyPolicy gives the request the class, deadline and objectives that its key allows, and
// holds it to the key's limits on one request.
func (x *exchange) applyPolicy(c *fiber.Ctx, req *pd.Request) error {
	policy, err := x.server.access.PolicyFor(x.key, access.RequestedPolicy{
		Priority: strings.Clone(c.Get(access.PriorityHeader)), Deadline: c.Get(access.DeadlineHeader),
		TTFT: c.Get(access.TTFTHeader), ITL: c.Get(access.ITLHeader),
	}, x.start)
	var unread *access.HeaderError
	if errors.As(err, &unread) {
		return invalid(unread.Header, "%s", unread.Error())
	}
	if err != nil {
		return err
	}
	req.Class, req.Tenant, req.Deadline = policy.Class, x.key.Tenant, policy.Deadline
	req.TTFT, req.ITL = policy.TTFT, policy.ITL
	if !req.Dialect.Split {
		return nil
	}
	return x.limit(req)
}

// salt keeps the KV of the tenant's prompts apart from that of others. Where an engine of
// the model would drop the salt a message goes on as the chat that means the same. What
// cannot is refused, unless operators let tenants share KV there; the prompt then counts
// as unsalted, which is how the engines keep it.
func (x *exchange) salt(req *pd.Request) (*pd.Request, error) {
	if !req.Dialect.Split || x.key.Salt == "" {
		return req, nil
	}
	engines := x.server.enginesOf(req.Model)
	if keepSalt(req.Dialect, engines) {
		return x.salted(req), nil
	}
	chat, err := asChat(req, engines)
	switch {
	case err == nil:
		x.translated = true
		return x.salted(chat), nil
	case x.server.cfg.SharedKV:
		return req, nil
	}
	message := "The engines of this model cannot keep tenants apart on " + req.Dialect.Path + ". Use /v1/chat/completions."
	var inexact *messages.InexactError
	if errors.As(err, &inexact) {
		message = "The engines of this model cannot keep tenants apart on " + req.Dialect.Path +
			", and the request cannot be sent as a chat because of " + inexact.What + ". Use /v1/chat/completions."
	}
	return nil, &badRequest{status: http.StatusBadRequest, code: "tenants_not_separated", message: message}
}

func (x *exchange) salted(req *pd.Request) *pd.Request {
	req.Salt = x.key.Salt
	req.Body = req.Body.With(api.Edit{Key: saltField(req.Dialect), Value: quoted(req.Salt)})
	return req
}

// enginesOf are the engines of the servers of a model, an unknown one where there are none
// yet.
func (s *Server) enginesOf(model string) (engines []pools.Identity) {
	now := time.Now()
	for _, server := range s.fleet.Servers() {
		if server.Serves(model, now) {
			engines = append(engines, server.Identity())
		}
	}
	if len(engines) == 0 {
		engines = []pools.Identity{{}}
	}
	return engines
}

// keepSalt reports whether all engines keep the KV of an API's prompts apart by a salt.
func keepSalt(d *api.Dialect, engines []pools.Identity) bool {
	return !slices.ContainsFunc(engines, func(e pools.Identity) bool { return !pd.KeepsSalt(d, e) })
}

var errNoTranslation = errors.New("no chat means the same")

// asChat returns a message as the chat that all engines of its model would make of it
// themselves, if they are of one kind.
func asChat(req *pd.Request, engines []pools.Identity) (*pd.Request, error) {
	other := func(e pools.Identity) bool { return e.Engine != engines[0].Engine }
	if req.Dialect != api.Messages || slices.ContainsFunc(engines, other) || !keepSalt(api.Chat, engines) {
		return nil, errNoTranslation
	}
	body, err := messages.ToChat(req.Body, messages.Engine(engines[0].Engine))
	if err != nil {
		return nil, err
	}
	chat, err := parse(api.Chat, body)
	if err != nil {
		return nil, err
	}
	chat.ID, chat.Header, chat.Model = req.ID, req.Header, req.Model
	chat.Class, chat.Tenant, chat.Deadline = req.Class, req.Tenant, req.Deadline
	chat.TTFT, chat.ITL = req.TTFT, req.ITL
	return chat, nil
}

// saltField is where engines look for what keeps equal prefixes apart. SGLang's own API
// knew it first by another name (sglang python/sglang/srt/managers/io_struct.py).
func saltField(d *api.Dialect) string {
	if d.Native {
		return "extra_key"
	}
	return "cache_salt"
}

func quoted(text string) []byte {
	out, _ := json.Marshal(text) // a string always marshals
	return out
}

// limit refuses what one request asks too much of, and bounds answers that the client
// left open where its key has a bound.
func (x *exchange) limit(req *pd.Request) error {
	if req.Answers > x.key.MaxSamples {
		return invalid("n", "The request asks for too many answers: prompts times n, or best_of, must not exceed %d.", x.key.MaxSamples)
	}
	if req.Dialect.Native {
		return x.limitNative(req)
	}
	if bias := req.Body.Get("logit_bias"); !bias.Null() {
		if _, ok := bias.Object(); !ok {
			return invalid("logit_bias", "The field logit_bias must be an object of at most 1024 fields, none twice.")
		}
	}
	return x.limitOutput(req)
}

// limitOutput holds every field that bounds the answer to the key's bound. The dialect's
// own is always set: some engines read no other, and some take a null for no bound, or a
// zero where there are several (SGLang before it knew max_completion_tokens as the first).
func (x *exchange) limitOutput(req *pd.Request) error {
	most := x.key.MaxOutput
	if most == 0 {
		return nil
	}
	limits := req.Dialect.Limits()
	var edits []api.Edit
	for i, field := range limits {
		value := req.Body.Get(field)
		if n, ok := value.Int(); ok && n > int64(most) {
			return invalid(field, "The field %s must not exceed %d with this API key.", field, most)
		}
		if i > 0 && value != nil && value.Null() {
			edits = append(edits, api.Edit{Key: field})
		}
	}
	if req.MaxField == "" {
		req.MaxField, req.MaxOutput = limits[0], most
		req.OutputTokens = min(req.OutputTokens, most)
	}
	own := req.Body.Get(limits[0])
	if n, ok := own.Int(); own.Null() || ok && n == 0 && len(limits) > 1 {
		edits = append(edits, api.Edit{Key: limits[0], Value: strconv.AppendInt(nil, int64(req.MaxOutput), 10)})
	}
	if len(edits) > 0 {
		req.Body = req.Body.With(edits...)
	}
	return nil
}

// limitNative is the same for SGLang's own API, whose bounds stand one level deeper.
func (x *exchange) limitNative(req *pd.Request) error {
	most := int64(x.key.MaxOutput)
	if most == 0 {
		return nil
	}
	params, err := samplingParams(req.Body)
	if err != nil {
		return err
	}
	for _, p := range params {
		if n, ok := p.Get("max_new_tokens").Int(); !ok || n > most {
			params = nil
			break
		}
	}
	if len(params) == 0 {
		return invalid(samplingField, "With this API key the field max_new_tokens must be set, and not exceed %d.", most)
	}
	return nil
}

// setRateLimitHeaders tells the client what is left of its limits, in OpenAI's headers.
// Tokens are those of prompts; those of answers have a limit of their own.
func (x *exchange) setRateLimitHeaders(c *fiber.Ctx) {
	if x.key == nil || !x.key.Limited() {
		return
	}
	names := map[string]string{access.OfRequests: "Requests", access.OfPrompt: "Tokens", access.OfOutput: "Output-Tokens"}
	for of, s := range x.key.LimitStatuses(time.Now()) {
		c.Set("X-Ratelimit-Limit-"+names[of], strconv.Itoa(s.Limit))
		c.Set("X-Ratelimit-Remaining-"+names[of], strconv.Itoa(s.Remaining))
		c.Set("X-Ratelimit-Reset-"+names[of], s.Reset.Round(time.Millisecond).String())
	}
}

// tokensOf is what an answer cost, as far as its engine reported it.
func tokensOf(u api.Usage) access.Tokens {
	c := access.Tokens{Prompt: -1, Output: -1}
	if u.Prompt.Known {
		c.Prompt = u.Prompt.Tokens
	}
	if u.Output.Known {
		c.Output = u.Output.Tokens
	}
	return c
}
