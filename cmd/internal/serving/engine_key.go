package serving

import "net/http"

// withKey adds the engines' key to what the gateway asks for itself: probes,
// probe requests, tokens. Clients' requests never pass through it: a client without a
// key must not be let in by the gateway's.
type withKey struct {
	http.RoundTripper
	key *reloadableSecret
}

// withEngineKey adds the key, as it is by then, to each request; without a file of one nothing is added.
func withEngineKey(transport http.RoundTripper, key *reloadableSecret) http.RoundTripper {
	if key.file == "" {
		return transport
	}
	return withKey{transport, key}
}

func (k withKey) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+k.key.current())
	return k.RoundTripper.RoundTrip(req)
}
