package standby

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

var (
	errAdapterRoom = errors.New("all adapters of the server are in use")
	errOccupied    = errors.New("the GPUs did not become free in time")
)

// refusal is for how long a server is not asked again for what it failed to do.
func refusal(err error) time.Duration {
	if errors.Is(err, errAdapterRoom) || errors.Is(err, errOccupied) {
		return time.Second // one may be idle soon
	}
	return 30 * time.Second
}

// maxAnswer bounds what is read of an engine's answer, in bytes.
const maxAnswer = 64 << 10

// engine is one server as it takes orders.
type engine struct {
	server *pools.Server
	client *http.Client
}

// post asks an engine for something. That an adapter is there already, or gone already,
// is what was wanted: other gateways may have asked before.
func (e engine) post(ctx context.Context, url string, body map[string]string) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(data))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := e.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return err
	}
	already := resp.StatusCode == http.StatusBadRequest && strings.Contains(string(answer), "already been loaded")
	gone := resp.StatusCode == http.StatusNotFound && strings.Contains(string(answer), "cannot be found")
	if resp.StatusCode != http.StatusOK && !already && !gone {
		return fmt.Errorf("%s answered %d", req.URL.Path, resp.StatusCode)
	}
	return nil
}
