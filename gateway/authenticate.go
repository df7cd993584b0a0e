package gateway

import (
	"errors"
	"strings"

	"github.com/gofiber/fiber/v2"

	"github.com/tandem-gateway/tandem/gateway/access"
	"github.com/tandem-gateway/tandem/pd"
)

// Errors of authentication.
var (
	errNoKey      = errors.New("the request carries no API key")
	errUnknownKey = errors.New("the request's API key is not known")
)

// authenticate finds the key that a request carries, as OpenAI's or as Anthropic's clients
// send it.
func (s *Server) authenticate(h header) (*access.Key, error) {
	sent := sentKey(h)
	if key := s.access.Find([]byte(sent)); key != nil {
		return key, nil
	}
	if len(sent) == 0 {
		return nil, errNoKey
	}
	return nil, errUnknownKey
}

// sentKey may alias a buffer of the server.
func sentKey(h header) string {
	const scheme = "Bearer "
	if auth := h.Get(fiber.HeaderAuthorization); len(auth) > len(scheme) && strings.EqualFold(auth[:len(scheme)], scheme) {
		return strings.TrimSpace(auth[len(scheme):])
	}
	return h.Get("X-Api-Key")
}

// firstOf is the value of the first header of several that is there, "" for none.
func firstOf(h header, names ...string) string {
	for _, name := range names {
		if value := h.Get(name); value != "" {
			return value
		}
	}
	return ""
}

// unreadHeader is what a client is told where a header of its policy cannot be read, any other error as it is.
func unreadHeader(err error) error {
	var unread *access.HeaderError
	if errors.As(err, &unread) {
		return invalid(unread.Header, "%s", unread.Error())
	}
	return err
}

// applyPolicy gives the request the class, deadline and objectives that its key allows, and
// holds it to the key's limits on one request.
func (x *exchange) applyPolicy(h header, req *pd.Request) error {
	policy, err := x.server.access.PolicyFor(x.key, access.RequestedPolicy{
		Priority: strings.Clone(h.Get(access.PriorityHeader)), Deadline: h.Get(access.DeadlineHeader),
		TTFT: h.Get(access.TTFTHeader), ITL: h.Get(access.ITLHeader),
		Fairness: strings.Clone(firstOf(h, access.FairnessHeader, access.OldFairnessHeader)),
		Level:    x.server.levelOf(firstOf(h, access.ObjectiveHeader, access.OldObjectiveHeader)),
	}, x.start)
	if err != nil {
		return unreadHeader(err)
	}
	x.class = policy.Class
	req.Class, req.Tenant, req.Deadline = policy.Class, policy.Tenant, policy.Deadline
	req.TTFT, req.ITL = policy.TTFT, policy.ITL
	if !req.Dialect.Split {
		return nil
	}
	return x.limit(req)
}
