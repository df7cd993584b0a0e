// Package adminport asks a gateway's admin port, for the commands of operators.
package adminport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-gateway/tandem/cmd/internal/secretfile"
)

// Port is the admin port of a gateway, as flags name it.
type Port struct {
	Address   string // host:port or a URL
	TokenFile string // "": the port asks for no token
}

// AddFlags gives a command the flags that say where the port is.
func (p *Port) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&p.Address, "admin", "http://127.0.0.1:8081", "`address` of the gateway's admin port")
	flags.StringVar(&p.TokenFile, "admin-token-file", "", "`file` with the token that the admin port asks for")
}

// timeout is how long an answer of the port may take.
const timeout = 5 * time.Second

// ErrNotFound is an answer 404: what was asked for is not there.
var ErrNotFound = errors.New("not found")

// noPage is the answer of net/http's mux for a path that it does not have. Our pages answer 404 with other words.
const noPage = "404 page not found"

// Get asks for a path, and reads the answer's JSON.
func (p Port) Get(ctx context.Context, path string, into any) error {
	answer, err := p.do(ctx, http.MethodGet, path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return fmt.Errorf("read the gateway's answer: %w", err)
	}
	return nil
}

// Do asks for a path by a method whose answer has no body.
func (p Port) Do(ctx context.Context, method, path string) error {
	_, err := p.do(ctx, method, path)
	return err
}

func (p Port) do(ctx context.Context, method, path string) ([]byte, error) {
	token, err := secretfile.ReadFilled("admin-token-file", p.TokenFile)
	if err != nil {
		return nil, err
	}
	url := strings.TrimSuffix(p.Address, "/")
	if !strings.Contains(url, "://") {
		url = "http://" + url
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url+path, nil)
	if err != nil {
		return nil, fmt.Errorf("ask the gateway: %w", err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the gateway: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the gateway's answer: %w", err)
	case asksForToken(resp) && token == "":
		return nil, fmt.Errorf("%s asks for a token: name the file that holds it with --admin-token-file", url)
	case asksForToken(resp):
		return nil, fmt.Errorf("%s does not take the token in %s: --admin-token-file must name the file that holds the gateway's", url, p.TokenFile)
	case resp.StatusCode == http.StatusNotFound && resp.Header.Get("Content-Type") == "application/json":
		return nil, fmt.Errorf("%s is not the admin port but serves clients: give --admin the address that the gateway has as --admin", url)
	case resp.StatusCode == http.StatusMethodNotAllowed, resp.StatusCode == http.StatusNotFound && strings.TrimSpace(string(answer)) == noPage:
		return nil, fmt.Errorf("%s is not a page of the admin port: give --admin the address that the gateway has as --admin, without a path", url+path)
	case resp.StatusCode == http.StatusNotFound:
		return nil, fmt.Errorf("%w: %s", ErrNotFound, strings.TrimSpace(string(answer)))
	case resp.StatusCode >= 300:
		return nil, fmt.Errorf("the gateway answered %s: %s", resp.Status, strings.TrimSpace(string(answer)))
	}
	return answer, nil
}

// asksForToken reports whether a port refuses for want of a token; another one asks for a certificate alone.
func asksForToken(resp *http.Response) bool {
	return resp.StatusCode == http.StatusUnauthorized &&
		slices.ContainsFunc(resp.Header.Values("Www-Authenticate"), func(way string) bool { return strings.HasPrefix(way, "Basic") })
}
