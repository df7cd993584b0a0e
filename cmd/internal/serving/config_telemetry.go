package serving

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-gateway/tandem/pd/histogram"
)

// telemetryConfig is where traces and logs go.
type telemetryConfig struct {
	otlp       string
	traceShare float64
	histograms histogram.Config
	logLevel   string
	logText    bool

	history      time.Duration // for which decisions are remembered
	historyBytes int
}

func (c *telemetryConfig) bind(fs *pflag.FlagSet) {
	fs.StringVar(&c.otlp, "otlp-endpoint", c.otlp, "`URL` of an OTLP/HTTP collector for traces, such as http://jaeger:4318; empty sends none")
	fs.Float64Var(&c.traceShare, "trace-share", c.traceShare, "share of requests that are traced, `0..1`")
	fs.BoolVar(&c.histograms.Native, "native-histograms", c.histograms.Native,
		"keep native histograms beside those with fixed buckets; Prometheus takes them where its own feature native-histograms is on, and needs scrape_classic_histograms "+
			"(always_scrape_classic_histograms from 3.0 on) for the dashboards and rules, which read fixed buckets")
	fs.StringVar(&c.logLevel, "log-level", c.logLevel, "debug, info, warn or error")
	fs.DurationVar(&c.history, "decision-history", c.history, "`time` for which decisions on requests are remembered, for tandem explain and the admin port")
	fs.IntVar(&c.historyBytes, "decision-bytes", c.historyBytes,
		"memory for them, `bytes`: where it is too little the oldest keep the chosen servers alone, and then are forgotten")
	fs.BoolVar(&c.logText, "log-text", c.logText, "log as text for people instead of JSON")
}

func (c *telemetryConfig) validate() error {
	if u, err := url.Parse(c.otlp); c.otlp != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return fmt.Errorf("otlp-endpoint %q: want http://host:port", c.otlp)
	}
	if c.traceShare < 0 || c.traceShare > 1 {
		return fmt.Errorf("trace-share %v: want 0 to 1", c.traceShare)
	}
	if c.history <= 0 || c.historyBytes <= 0 {
		return errors.New("decision-history and decision-bytes must be positive")
	}
	_, err := c.level()
	return err
}

func (c *telemetryConfig) level() (slog.Level, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(c.logLevel)); err != nil {
		return l, fmt.Errorf("log-level %q: want debug, info, warn or error", c.logLevel)
	}
	return l, nil
}

func (c *telemetryConfig) logger() (*slog.Logger, error) {
	level, err := c.level()
	if err != nil {
		return nil, err
	}
	options := &slog.HandlerOptions{Level: level}
	if c.logText {
		return slog.New(slog.NewTextHandler(os.Stderr, options)), nil
	}
	return slog.New(slog.NewJSONHandler(os.Stderr, options)), nil
}
