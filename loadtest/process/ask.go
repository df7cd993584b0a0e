package process

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// askTime is how long a process may take to answer on its control or admin port.
const askTime = 5 * time.Second

// Ask does one request to a control or admin port. An answer other than 200 is an error, and
// is returned with it.
func Ask(ctx context.Context, method, url string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %.200s", method, url, resp.Status, answer)
	}
	return answer, err
}
