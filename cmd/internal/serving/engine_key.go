package serving

import (
	"net/http"

	"github.com/tandem-gateway/tandem/cmd/internal/secretfile"
)

// engineKey adds the engines' key to what the gateway asks for itself: probes,
// probe requests, tokens. Clients' requests never pass through it: a client without a
// key must not be let in by the gateway's.
type engineKey struct {
	http.RoundTripper
	bearer string
}

// withEngineKey reads the key from a file; without one nothing is added.
func withEngineKey(transport http.RoundTripper, file string) (http.RoundTripper, error) {
	key, err := secretfile.ReadFilled("engine-key-file", file)
	if err != nil || key == "" {
		return transport, err
	}
	return engineKey{transport, "Bearer " + key}, nil
}

func (k engineKey) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", k.bearer)
	return k.RoundTripper.RoundTrip(req)
}
