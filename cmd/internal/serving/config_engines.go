package serving

import (
	"errors"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-gateway/tandem/cmd/internal/porttls"
)

// enginesConfig is how engines are reached.
type enginesConfig struct {
	connect   time.Duration
	key       string // file
	trtllmKey string // file
	ca        porttls.AuthorityFile
}

func (c *enginesConfig) bind(fs *pflag.FlagSet) {
	fs.StringVar(&c.key, "engine-key-file", c.key,
		"`file` that holds the key of engines started with --api-key, for probes and probe requests; clients' requests bear their own; read again when it changes")
	fs.StringVar(&c.trtllmKey, "trtllm-key-file", c.trtllmKey,
		"`file` that holds the internal_request_auth_key of TensorRT-LLM servers, which take no hand-off that is not signed with it; read again when it changes")
	fs.StringVar(&c.ca.File, "engine-ca", c.ca.File,
		"`file` with the authority of engines whose addresses begin with https://, trusted beside the system's; read again when it has changed")
	fs.DurationVar(&c.connect, "connect-timeout", c.connect, "time to connect to a server")
}

func (c *enginesConfig) validate() error {
	if c.connect <= 0 {
		return errors.New("connect-timeout must be positive")
	}
	return nil
}
