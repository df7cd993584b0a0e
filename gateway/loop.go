package gateway

import (
	"bytes"
	"net/http"
	"strings"

	"github.com/gofiber/fiber/v2"

	"github.com/tandem-gateway/tandem/pd/api"
)

// agentPrefix begins the product by which a gateway names itself to servers, in User-Agent; its fleet's name follows.
const agentPrefix = "tandem/"

// maxAgents bounds the products of gateways that a request has passed, in bytes: more than some ten gateways in a row
// are a loop, or as good as one.
const maxAgents = 256

// AgentOf is the product of the gateways of a fleet.
func AgentOf(fleet string) string { return agentPrefix + fleet }

// agents are the gateways that a request has passed, "" where it comes from none.
func agents(userAgent string) string {
	if strings.HasPrefix(userAgent, agentPrefix) {
		return userAgent
	}
	return ""
}

// hasPassed reports whether gateways with the own servers are among those that a request has passed, or too many are.
func (s *Server) hasPassed(agents []byte) bool {
	if !bytes.HasPrefix(agents, []byte(agentPrefix)) {
		return false
	}
	if len(agents) > maxAgents {
		return true
	}
	for product := range bytes.FieldsSeq(agents) {
		if string(product) == s.agent {
			return true
		}
	}
	return false
}

// refuseLoop refuses what this gateway sent itself, or one with the same servers did, as their address is in their own
// list: a request would go around for as long as its client waits, and a probe would find a server.
func (s *Server) refuseLoop(c *fiber.Ctx) error {
	if !s.hasPassed(c.Request().Header.UserAgent()) {
		return c.Next()
	}
	s.metrics.loops.Inc()
	d := shapeOf(c)
	nameRequest(c, d, requestID(c))
	return failure{final: true, text: api.ErrorText{
		Status: http.StatusLoopDetected, Type: "api_error", Code: "loop",
		Message: "This request comes from this gateway itself, or from one with the same servers: an address of theirs is in their list of servers. Take it out.",
	}}.send(c, d)
}
