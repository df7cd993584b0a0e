package serving

import (
	"context"

	"github.com/spf13/pflag"

	"github.com/tandem-gateway/tandem/pools"
)

// followConfig takes over what changes in the configuration.
func (n *Node) followConfig(ctx context.Context, file string, loaded []byte, flags *pflag.FlagSet) (stop func()) {
	return n.follow(ctx, "configuration", file, loaded, func() error {
		next, err := loadConfig(file, flags)
		if err != nil {
			return err
		}
		return n.reload(next)
	})
}

// follow reads a file again whenever it differs from what was read last or SIGHUP
// comes, until stop is called, which waits for it.
func (n *Node) follow(ctx context.Context, what, file string, loaded []byte, again func() error) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	changes := watchFile(ctx, file, loaded, n.log)
	n.reloads.record(what, nil) // it was read at the start
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range changes {
			err := again()
			n.reloads.record(what, err)
			if err != nil {
				n.log.Error("a file is broken, the old one stays", "file", what, "error", err.Error())
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// reload makes the servers of next the fleet, and logs what changed of them and what needs a restart.
func (n *Node) reload(next config) error {
	if err := n.discovery.sources.Set("configuration", next.specs()); err != nil {
		return err
	}
	n.discovery.dns.SetNames(next.names())
	names := restartNeeded(n.cfg, next)
	n.waitForRestart(names)
	listed := next.listed()
	n.log.Info("configuration reloaded", append([]any{"servers", len(next.specs())}, changesOf(n.discovery.listed, listed).fields()...)...)
	for _, role := range []pools.Role{pools.Prefill, pools.Decode} {
		if hasRole(n.discovery.listed, role) && !hasRole(listed, role) {
			n.log.Warn("the configuration lists no server of a role any more", "role", role.String())
		}
	}
	n.discovery.listed = listed
	return nil
}

// reloadKeys makes what the file of keys says now the keys.
func (n *Node) reloadKeys() error {
	keys, err := n.cfg.access.keys()
	if err != nil {
		return err
	}
	n.access.Apply(keys)
	count, tenants := keys.Len()
	n.log.Info("keys reloaded", "keys", count, "tenants", tenants)
	if count == 0 {
		n.log.Warn("the file of keys has none: every request is refused")
	}
	return nil
}

// waitForRestart says which settings of the configuration take effect at the next start.
func (n *Node) waitForRestart(settings []string) {
	n.reloads.needRestart.Set(float64(len(settings)))
	if len(settings) > 0 {
		n.log.Warn("settings changed that need a restart", "settings", settings)
	}
}
