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
	key, err := readEngineKey(file)
	if err != nil || key == "" {
		return transport, err
	}
	return engineKey{transport, "Bearer " + key}, nil
}

// readEngineKey reads the key from a file; "" without one.
func readEngineKey(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("engine-key-file: %w", err)
	}
	key := strings.TrimSpace(string(content))
	if key == "" {
		return "", errors.New("engine-key-file: the file is empty")
	}
	return key, nil
}

func (k engineKey) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", k.bearer)
	return k.RoundTripper.RoundTrip(req)
}
