package serving

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
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
	if file == "" {
		return transport, nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("engine-key-file: %w", err)
	}
	key := strings.TrimSpace(string(content))
	if key == "" {
		return nil, errors.New("engine-key-file: the file is empty")
	}
	return engineKey{transport, "Bearer " + key}, nil
}

func (k engineKey) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", k.bearer)
	return k.RoundTripper.RoundTrip(req)
}
