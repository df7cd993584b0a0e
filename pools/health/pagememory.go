package health

import (
	"bytes"
	"io"
	"net/http"
)

// pageMemory is a transport that asks for each page once: what was answered well is answered from memory from then on.
// It is for the questions of one goroutine.
type pageMemory struct {
	http.RoundTripper
	pages map[string][]byte // by URL
}

func (m pageMemory) RoundTrip(req *http.Request) (*http.Response, error) {
	url := req.URL.String()
	if page, known := m.pages[url]; known {
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(page))}, nil
	}
	resp, err := m.RoundTripper.RoundTrip(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		return resp, err
	}
	defer func() { _ = resp.Body.Close() }()
	page, err := io.ReadAll(io.LimitReader(resp.Body, maxProbeBody))
	if err != nil {
		return nil, err
	}
	m.pages[url] = page
	resp.Body = io.NopCloser(bytes.NewReader(page))
	return resp, nil
}
