package discovery

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/tandem-gateway/tandem/pools"
)

// Schemes of servers that are found by name: an A or AAAA record with the URL's port,
// and an SRV record with its own ports.
const (
	dnsScheme = "dns+http"
	srvScheme = "srv+http"
)

// IsName reports whether the spec is not one server but a name for any number: its URL
// is dns+http://name:port or srv+http://_service._proto.name.
func IsName(s pools.Spec) bool {
	scheme, _, _ := strings.Cut(s.URL, "://")
	return scheme == dnsScheme || scheme == srvScheme
}

// ValidateName reports what is wrong with a name for servers, nil if nothing.
func ValidateName(s pools.Spec) error {
	u, err := url.Parse(s.URL)
	switch {
	case err != nil:
		return fmt.Errorf("servers %q: %w", s.URL, err)
	case u.Hostname() == "" || strings.Trim(u.Path, "/") != "":
		return fmt.Errorf("servers %q: want dns+http://name:port or srv+http://name", s.URL)
	case u.Scheme == dnsScheme && u.Port() == "":
		return fmt.Errorf("servers %q: an address record has no port: want dns+http://name:port", s.URL)
	case u.Scheme == srvScheme && u.Port() != "":
		return fmt.Errorf("servers %q: the SRV record has the ports", s.URL)
	}
	s.URL = "http://127.0.0.1:1" // the rest is that of a server
	return s.Validate()
}
