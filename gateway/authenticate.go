package gateway

import (
	"bytes"
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
