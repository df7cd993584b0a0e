package gateway

import (
	"net"
	"net/http"
	"net/http/pprof"
)

// WithProfiles adds Go's profiles of this process at /debug/pprof to the admin port. Where the port asks
// for nothing (protected is false) they are for this machine alone: a profile names the functions of the
// process and what it was started with, and each costs it time.
func WithProfiles(protected bool, admin http.Handler) http.Handler {
	profiles := http.NewServeMux()
	profiles.HandleFunc("GET /debug/pprof/", pprof.Index)
	profiles.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	profiles.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	profiles.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	profiles.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux := http.NewServeMux()
	mux.Handle("/", admin)
	mux.HandleFunc("/debug/pprof/", func(w http.ResponseWriter, r *http.Request) {
		if !protected && !fromThisMachine(r.RemoteAddr) {
			http.Error(w, "profiles are for this machine alone, unless the admin port asks for a token or a client's certificate", http.StatusForbidden)
			return
		}
		profiles.ServeHTTP(w, r)
	})
	return mux
}

// fromThisMachine reports an address of the loopback interface.
func fromThisMachine(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && ip.IsLoopback()
}
