package connector

import (
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/tandem-gateway/tandem/pd/api"
)

const (
	maxHosts = 64  // of one hand-off that are looked at
	maxHost  = 253 // bytes of a host's name
)

// hostsIn are the hosts that a field of a hand-off names: a host, host:port, a URL
// such as tcp://10.0.0.1:5000, or a list of them. What cannot be read as one, and what is
// beyond the first maxHosts, is an empty host, which is no server's.
func hostsIn(field api.Value) []string {
	if len(field) == 0 || field[0] == 'n' { // null
		return nil
	}
	if field[0] != '[' {
		return []string{hostOf(field)}
	}
	var hosts []string
	for v := range field.Elements() {
		if len(hosts) == maxHosts {
			return append(hosts, "")
		}
		hosts = append(hosts, hostOf(v))
	}
	return hosts
}

// hostOf reads one host. A port or a path that is none may hide another host from us: ZMQ
// connects from a;to b where it reads "a:1;b:2".
func hostOf(v api.Value) string {
	text, ok := v.String()
	if !ok || len(text) > maxHost {
		return ""
	}
	if !strings.ContainsAny(text, ":/") { // as most are: no URL, and without a port
		return text
	}
	if u, err := url.Parse(text); err == nil && u.Host != "" {
		if strings.TrimSuffix(text, "/") == u.Scheme+"://"+u.Host {
			return u.Hostname()
		}
		return text
	}
	if host, port, err := net.SplitHostPort(text); err == nil {
		if _, err := strconv.ParseUint(port, 10, 16); err == nil {
			return host
		}
	}
	return text
}
