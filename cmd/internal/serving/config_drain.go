package serving

import (
	"errors"
	"time"

	"github.com/spf13/pflag"
)

// drainConfig is how long a gateway that ends waits: for proxies and clients to see
// that it does, and for the requests that it has.
type drainConfig struct {
	delay   time.Duration
	timeout time.Duration
}

func (c *drainConfig) bind(fs *pflag.FlagSet) {
	fs.DurationVar(&c.delay, "drain-delay", c.delay, "time between turning unready and taking no more connections; answers end those that are open")
	fs.DurationVar(&c.timeout, "drain-timeout", c.timeout, "time for requests and streams to end")
}

func (c *drainConfig) validate() error {
	if c.timeout <= 0 || c.delay < 0 {
		return errors.New("drain-timeout must be positive, drain-delay not negative")
	}
	return nil
}
