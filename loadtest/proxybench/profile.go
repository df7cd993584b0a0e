package proxybench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

// CPU is the kind of a profile of the time that a process computes.
const CPU = "profile"

// Profile puts the load of one measure on a proxy and returns what its process profiles of itself
// meanwhile: of CPU what a GET of Proxy.Profile answers, of another kind what stands beside it, as heap and
// goroutine do.
func Profile(ctx context.Context, cfg Config, p Proxy, measureName, kind string) (text []byte, err error) {
	of, err := findMeasure(measureName)
	if err != nil {
		return nil, err
	}
	if p.Profile == "" {
		return nil, fmt.Errorf("%s has no profile", p.Name)
	}
	bed, stop, err := startEngines(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	p.Command = slices.Concat(p.Command, p.Profiled)
	serving, err := p.start(ctx, bed)
	defer func() { err = errors.Join(err, serving.stop()) }()
	if err != nil {
		return nil, err
	}
	load, end := context.WithCancel(ctx)
	measured := make(chan struct{})
	go func() {
		defer close(measured)
		// What the load came to is not asked here.
		_, _ = of.run(load, &probe{
			address: serving.address, tree: serving.tree(), control: bed.control, lasts: 2 * cfg.Lasts, streams: cfg.Streams, tally: &tally{},
		})
	}()
	defer func() {
		end()
		<-measured
	}()
	url, warm := serving.fill(p.Profile), cfg.Lasts/4
	if kind == CPU {
		url = fmt.Sprintf("%s?seconds=%d", url, max(1, int(cfg.Lasts.Seconds())))
	} else { // of what there is once the load is in full swing
		url, warm = strings.TrimSuffix(url, CPU)+kind+"?gc=1", cfg.Lasts
	}
	if err := pause(ctx, warm); err != nil {
		return nil, err
	}
	return fetchProfile(ctx, url, cfg.Lasts)
}

// fetchProfile asks a process for its profile, which may take some time.
func fetchProfile(ctx context.Context, url string, lasts time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, lasts+20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask for the profile: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("ask for the profile: %s: %.200s", resp.Status, text)
	}
	return text, err
}
