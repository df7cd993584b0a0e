package serving

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/tandem-gateway/tandem/cmd/internal/porttls"
	"github.com/tandem-gateway/tandem/gateway/picker"
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
	// picker is where this gateway picks servers for a proxy; "": it does not.
	picker      string
	pickerTLS   porttls.Config
	pickerPlain bool
	// pickerLeaderOnly: replicas that follow another say that requests should go to that.
	pickerLeaderOnly bool
	picking          picker.Config
}

func defaultPorts() portsConfig {
	return portsConfig{listen: ":8080", admin: "127.0.0.1:8081"}
}

func (c *portsConfig) bind(fs *pflag.FlagSet) {
	fs.StringVar(&c.listen, "listen", c.listen, "`address` for OpenAI clients; empty where picker is set: none")
	c.clientTLS.BindOwn(fs, "tls")
	fs.StringVar(&c.admin, "admin", c.admin, "`address` for operators, page at /ui/; metrics, readiness and decisions; not for clients")
	c.adminTLS.Bind(fs, "admin", "those who may ask, save at /livez and /readyz: it or the token lets them in")
	fs.StringVar(&c.orca, "orca-listen", c.orca,
		"`address` on which this gateway streams its own load to a proxy before it (gRPC OpenRcaService, in plain text); empty: it "+
			"does not")
	c.bindPicker(fs)
}

// bindPicker names the settings of the port at which a proxy asks where requests go.
func (c *portsConfig) bindPicker(fs *pflag.FlagSet) {
	fs.StringVar(&c.picker, "picker", c.picker,
		"`address` at which this gateway is an endpoint picker: Envoy asks over ext_proc where requests go, and sends them itself; empty: it is none")
	c.pickerTLS.Port = "picker"
	fs.StringVar(&c.pickerTLS.Cert, "picker-cert", c.pickerTLS.Cert, "`file` with its certificate, read again when it has changed; empty: it signs its own")
	fs.StringVar(&c.pickerTLS.Key, "picker-key", c.pickerTLS.Key, "`file` with the certificate's key")
	fs.BoolVar(&c.pickerPlain, "picker-plain", c.pickerPlain, "picker speaks plain text")
	fs.BoolVar(&c.pickerLeaderOnly, "picker-leader-only", c.pickerLeaderOnly,
		"with redis: health checks and /readyz of a replica that follows another say that it is not ready, so that one replica picks; all of them do otherwise")
	fs.IntVar(&c.picking.Fallbacks, "picker-fallbacks", c.picking.Fallbacks,
		"servers that are named behind the one that is chosen, for proxies that try the next one where it fails; a proxy that takes one address "+
			"alone, as that of llm-d's standalone chart does, wants 0")
}

func (c *portsConfig) validate() error {
	for _, at := range []struct {
		setting, address string
		mayBeEmpty       bool
	}{
		{"listen", c.listen, c.picker != ""}, {"admin", c.admin, false}, {"picker", c.picker, true}, {"orca-listen", c.orca, true},
	} {
		if at.address == "" && at.mayBeEmpty {
			continue
		}
		if err := checkListen(at.address); err != nil {
			return fmt.Errorf("%s %q: %w", at.setting, at.address, err)
		}
	}
	if c.pickerPlain && c.pickerTLS.Cert != "" {
		return errors.New("picker-plain and picker-cert exclude each other")
	}
	return errors.Join(c.clientTLS.Validate(), c.adminTLS.Validate(), c.pickerTLS.Validate(), c.picking.Validate())
}

// validatePorts reports two settings that would bind one port: the second of them would fail when the first is bound.
func (c *config) validatePorts() error {
	type setting struct{ name, address, host, port string }
	var bound []setting
	for _, s := range []setting{
		{name: "listen", address: c.ports.listen}, {name: "admin", address: c.ports.admin}, {name: "picker", address: c.ports.picker},
		{name: "orca-listen", address: c.ports.orca}, {name: "scaler", address: c.scaling.keda.listen}, {name: "decider-listen", address: c.decider.listen},
	} {
		var err error
		if s.host, s.port, err = net.SplitHostPort(s.address); err != nil {
			continue // it is not set
		}
		number, err := net.LookupPort("tcp", s.port)
		if err != nil || number == 0 {
			continue // any port that is free
		}
		s.port = strconv.Itoa(number)
		for _, other := range bound {
			if s.port == other.port && hostsOverlap(s.host, other.host) {
				return fmt.Errorf("%s %s and %s %s are one port: give each its own", other.name, other.address, s.name, s.address)
			}
		}
		bound = append(bound, s)
	}
	return nil
}

// hostsOverlap reports whether a port cannot be bound at both hosts: they are the same, or one stands for all addresses.
// Names are not looked up.
func hostsOverlap(a, b string) bool {
	if strings.EqualFold(a, b) || a == "" || b == "" {
		return true
	}
	one, _ := netip.ParseAddr(a) // of a name: not valid
	other, _ := netip.ParseAddr(b)
	return one == other && one.IsValid() || listensForAll(one, other) || listensForAll(other, one)
}

// listensForAll reports whether wildcard stands for all addresses, and so for host. 0.0.0.0 stands for those of IPv4.
func listensForAll(wildcard, host netip.Addr) bool {
	return wildcard.IsValid() && wildcard.IsUnspecified() && (wildcard.Is6() || !host.Is6())
}

// checkListen says what is wrong with an address to listen at, before it is bound.
func checkListen(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return errors.New("want host:port")
	}
	if _, err := net.LookupPort("tcp", port); err != nil { // it knows services by name, as net.Listen does
		return fmt.Errorf("%q is not a valid port: want 0 to 65535", port)
	}
	return nil
}
