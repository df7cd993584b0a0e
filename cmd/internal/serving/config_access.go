package serving

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/tandem-gateway/tandem/cmd/internal/nearest"
	"github.com/tandem-gateway/tandem/gateway/access"
)

// accessConfig is which clients may come in.
type accessConfig struct {
	access.Config

	keysFile       string
	adminTokenFile string
	adminNames     []string
	adminProfiles  bool
}

func (c *accessConfig) bind(fs *pflag.FlagSet) {
	fs.StringVar(&c.keysFile, "keys-file", c.keysFile,
		"YAML `file` of API keys: tenants, classes, limits; read again when it changes; empty: no key is asked for")
	fs.StringSliceVar(&c.adminNames, "admin-name", c.adminNames,
		"`names` by which the admin port may be asked without a token, beside addresses, names without a dot and those under .svc, "+
			".local, .internal and .localhost; others are refused, since a page may point a name of its own at the port")
	fs.StringVar(&c.adminTokenFile, "admin-token-file", c.adminTokenFile,
		"`file` with the token that the admin port asks for, save at /livez and /readyz; read again when it changes; empty: none")
	fs.BoolVar(&c.adminProfiles, "admin-profiles", c.adminProfiles,
		"serve Go's profiles of this process at /debug/pprof of the admin port: behind its token or client's certificate, and where it asks "+
			"for neither for this machine alone")
	fs.StringSliceVar(&c.Classes, "classes", c.Classes, "`names` of the priority classes, the first is served first")
	fs.StringVar(&c.Class, "default-class", c.Class, "`class` of keys that name none, and of all clients without keys")
	fs.DurationVar(&c.Deadline, "deadline", c.Deadline,
		"time for the first content of requests that name none; one that is predicted to take longer is refused at once; 0: none")
	fs.IntVar(&c.MaxSamples, "max-samples", c.MaxSamples, "answers that one request may ask for: its prompts times n, or best_of")
	fs.BoolVar(&c.TrustHeaders, "trust-headers", c.TrustHeaders,
		"without keys: all clients may raise priority, set objectives, extend the deadline by x-tandem- headers, and name their tenant "+
			"by x-llm-d-inference-fairness-id")
}

// keys reads the file of keys, nil where there is none.
func (c *accessConfig) keys() (*access.Keys, error) {
	if c.keysFile == "" {
		return nil, nil
	}
	content, err := os.ReadFile(c.keysFile)
	if err != nil {
		return nil, fmt.Errorf("keys-file: %w", err)
	}
	keys, err := access.ReadKeys(content, c.Config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.keysFile, nameMistypedField(err))
	}
	return keys, nil
}

// nameMistypedField names an unknown field and the one that was meant. One that resembles none stays unnamed, since it may
// be a key.
func nameMistypedField(err error) error {
	var unknown *access.UnknownFieldError
	if !errors.As(err, &unknown) {
		return err
	}
	hint := nearest.Hint(unknown.Field, unknown.Known)
	if hint == "" {
		return err
	}
	return fmt.Errorf("line %d: unknown field %q%s", unknown.Line, unknown.Field, hint)
}
