package gateway

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/messages"
	"github.com/tandem-gateway/tandem/pools"
)

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
	return nil, noChat(req, "tenants_not_separated", "The engines of this model cannot keep tenants apart on ", err)
}

// noChat refuses a request that engines do not get as it is, for what why says of its API, nor as a chat.
func noChat(req *pd.Request, code, why string, err error) error {
	var wrong *messages.InvalidError
	if errors.As(err, &wrong) {
		return invalid(wrong.Field, "%s", wrong)
	}
	message := why + req.Dialect.Path + ". Use /v1/chat/completions."
	var inexact *messages.InexactError
	if errors.As(err, &inexact) {
		message = why + req.Dialect.Path + ", and the request cannot be sent as a chat because of " + inexact.What + ". Use /v1/chat/completions."
	}
	return &badRequest{status: http.StatusBadRequest, code: code, message: message}
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
	return !slices.ContainsFunc(engines, func(e pools.Identity) bool { return !connector.KeepsSalt(d, e) })
}

var errNoTranslation = errors.New("no chat means the same")

// asChat returns a message as the chat that all engines of its model would make of it
// themselves, if they are of one kind.
func asChat(req *pd.Request, engines []pools.Identity) (*pd.Request, error) {
	other := func(e pools.Identity) bool { return e.Engine != engines[0].Engine }
	if req.Dialect != api.Messages || slices.ContainsFunc(engines, other) || !keepSalt(api.Chat, engines) {
		return nil, errNoTranslation
	}
	before024 := func(e pools.Identity) bool { return !e.IsSince(0, 24) }
	body, err := messages.ToChat(req.Body, messages.Engine{Name: engines[0].Engine, JoinsResults: !slices.ContainsFunc(engines, before024)})
	if err != nil {
		return nil, err
	}
	chat, err := parse(api.Chat, body)
	if err != nil {
		return nil, err
	}
	chat.ID, chat.Header, chat.Model = req.ID, req.Header, req.Model
	chat.Class, chat.Tenant, chat.Deadline = req.Class, req.Tenant, req.Deadline
	chat.TTFT, chat.ITL, chat.Session = req.TTFT, req.ITL, req.Session
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
