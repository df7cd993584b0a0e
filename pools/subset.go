package pools

import (
	"cmp"
	"net"
	"net/url"
	"strings"
)

// Subset is the servers that a request may go to, as a proxy before the gateway names them by
// their addresses. A nil Subset is all servers.
type Subset struct {
	addresses map[string]bool // host:port, or a host alone: all its ports
	hosts     map[string]bool // of those addresses
}

// NewSubset is the servers at some addresses, host:port or host; none where there are none.
func NewSubset(addresses []string) *Subset {
	s := &Subset{addresses: make(map[string]bool, len(addresses)), hosts: make(map[string]bool, len(addresses))}
	for _, address := range addresses {
		address = strings.TrimSpace(address)
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			host = strings.Trim(address, "[]")
			address = host
		}
		s.addresses[address], s.hosts[host] = true, true
	}
	return s
}

// Has reports whether the server may be sent the request.
func (s *Subset) Has(server *Server) bool {
	if s == nil {
		return true
	}
	return s.addresses[server.address] || s.addresses[server.host]
}

// HasHost reports whether the server runs on a host of the subset, at whichever port.
func (s *Subset) HasHost(server *Server) bool {
	if s == nil {
		return true
	}
	return s.hosts[server.host]
}

// hostPort is the host of a server's URL, and its host:port as proxies write it.
func hostPort(server string) (host, address string) {
	u, err := url.Parse(server)
	if err != nil {
		return "", ""
	}
	usual := "80"
	if u.Scheme == "https" {
		usual = "443"
	}
	return u.Hostname(), net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), usual))
}

// Address is the host:port at which the server is reached.
func (s *Server) Address() string { return s.address }
