package serving

import (
	"errors"
	"fmt"
	"net"

	"github.com/spf13/pflag"

	"github.com/tandem-gateway/tandem/cmd/internal/porttls"
)

// portsConfig is where this gateway listens: for clients, for operators, and for a proxy that
// follows its load.
type portsConfig struct {
	listen string
	// clientTLS: without it the port for clients speaks plain text.
	clientTLS porttls.Config
	admin     string
	// adminTLS: without it the admin port speaks plain text.
	adminTLS porttls.Config
	orca     string
}

func defaultPorts() portsConfig { return portsConfig{listen: ":8080", admin: "127.0.0.1:8081"} }

func (c *portsConfig) bind(fs *pflag.FlagSet) {
	fs.StringVar(&c.listen, "listen", c.listen, "`address` for OpenAI clients")
	c.clientTLS.BindOwn(fs, "tls")
	fs.StringVar(&c.admin, "admin", c.admin, "`address` for metrics, readiness and decisions; not for clients")
	c.adminTLS.Bind(fs, "admin", "those who may ask, save at /livez and /readyz: it or the token lets them in")
	fs.StringVar(&c.orca, "orca-listen", c.orca,
		"`address` on which this gateway streams its own load to a proxy before it (gRPC OpenRcaService, in plain text); empty: it "+
			"does not")
}

func (c *portsConfig) validate() error {
	for name, addr := range map[string]string{"listen": c.listen, "admin": c.admin} {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return fmt.Errorf("%s %q: want host:port", name, addr)
		}
	}
	return errors.Join(c.clientTLS.Validate(), c.adminTLS.Validate())
}
