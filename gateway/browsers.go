package gateway

import (
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

const crossSiteMessage = "the admin port answers no pages of other sites; set a token to ask it from them"

// refuseBrowsers refuses what a page of another site lets an operator's browser ask of an
// admin port that asks for no token: requests across sites, and requests by a name that
// whoever owns it may point at this port (DNS rebinding). Addresses, names that nobody can
// register, and the operator's own names pass.
func refuseBrowsers(names []string, admin http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case free(r.URL.Path):
		case !isOwnName(r.Host, names):
			http.Error(w, "the admin port is not known by this Host; name it with --admin-name, or set a token", http.StatusForbidden)
			return
		case crossSite(r):
			http.Error(w, crossSiteMessage, http.StatusForbidden)
			return
		}
		admin.ServeHTTP(w, r)
	})
}

// free reports a path for kubelets and load balancers, which have neither token nor name.
func free(path string) bool { return path == "/livez" || path == "/readyz" }

// crossSite reports a request that a browser sends for a page that is not this port's own.
// Old browsers send Origin alone, and that not with every request.
func crossSite(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
		return true
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	from, err := url.Parse(origin)
	return err != nil || !strings.EqualFold(from.Host, r.Host)
}

// isOwnName reports whether a Host names this port and can name no other: an address, a
// name without a dot, one of a domain that is not in the public DNS, or one of names.
func isOwnName(host string, names []string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.ToLower(strings.TrimSuffix(strings.Trim(name, "[]"), "."))
	if net.ParseIP(name) != nil || name != "" && !strings.Contains(name, ".") {
		return true
	}
	for _, private := range []string{".localhost", ".local", ".internal", ".svc"} {
		if strings.HasSuffix(name, private) {
			return true
		}
	}
	return slices.ContainsFunc(names, func(own string) bool { return strings.EqualFold(own, name) })
}
