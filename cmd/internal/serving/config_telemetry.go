package serving

import (
	"fmt"
	"log/slog"
	"net/url"
	"os"

	"github.com/spf13/pflag"
)

// telemetryConfig is where traces and logs go.
type telemetryConfig struct {
	otlp       string
	traceShare float64
	logLevel   string
	logText    bool
}

func (c *telemetryConfig) bind(fs *pflag.FlagSet) {
	fs.StringVar(&c.otlp, "otlp-endpoint", c.otlp, "`URL` of an OTLP/HTTP collector for traces, such as http://jaeger:4318; empty sends none")
	fs.Float64Var(&c.traceShare, "trace-share", c.traceShare, "share of requests that are traced, `0..1`")
	fs.StringVar(&c.logLevel, "log-level", c.logLevel, "debug, info, warn or error")
	fs.BoolVar(&c.logText, "log-text", c.logText, "log as text for people instead of JSON")
}

func (c *telemetryConfig) validate() error {
	if u, err := url.Parse(c.otlp); c.otlp != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return fmt.Errorf("otlp-endpoint %q: want http://host:port", c.otlp)
	}
	if c.traceShare < 0 || c.traceShare > 1 {
		return fmt.Errorf("trace-share %v: want 0 to 1", c.traceShare)
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
