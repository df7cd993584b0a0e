package serving

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"

	"github.com/tandem-gateway/tandem/gateway"
)

// fleetName is the same of gateways whose configurations name the same servers, and of no others, as far as 48 bits tell
// them apart: what one of them sends another comes back to where it was.
func (c *config) fleetName() string {
	var from []string
	for _, spec := range c.listed() {
		from = append(from, fmt.Sprintf("%d %s %s", spec.Role, spec.URL, spec.ID()))
	}
	slices.Sort(from)
	kube := c.discovery.kube
	from = append(from, fmt.Sprintf("%+q", []any{kube.Namespace, kube.Pods, kube.Services, kube.InferencePools, c.discovery.nccl}))
	if c.discovery.registry {
		from = append(from, fmt.Sprintf("%+q", []any{c.redis.addrs, c.redis.Prefix}))
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%+q", from))
	return hex.EncodeToString(sum[:6])
}

// agentNamed names the gateway in what it sends: legs, probes, probe requests, questions for tokens. Legs whose request
// has passed other gateways name it before them. The headers are each request's own.
type agentNamed struct {
	http.RoundTripper
	agent []string
}

func withAgent(transport http.RoundTripper, fleet string) http.RoundTripper {
	return agentNamed{transport, []string{gateway.AgentOf(fleet)}}
}

func (a agentNamed) RoundTrip(req *http.Request) (*http.Response, error) {
	if given := req.Header["User-Agent"]; len(given) == 0 || given[0] == "tandem" {
		req.Header["User-Agent"] = a.agent
	}
	return a.RoundTripper.RoundTrip(req)
}
