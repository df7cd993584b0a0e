package serving

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/tandem-gateway/tandem/cmd/internal/secretfile"
)

// reloadableSecret is what a file holds that engines or operators ask for. It may be replaced while the gateway runs, as Kubernetes
// replaces the files of a mounted Secret.
type reloadableSecret struct {
	setting, file string
	loaded        []byte // hash of the file as it was at the start
	value         atomic.Pointer[string]
}

// readSecret reads the file that a setting names; without one the secret stays "".
func readSecret(setting, file string) (*reloadableSecret, error) {
	s := &reloadableSecret{setting: setting, file: file, loaded: contentHash(file)} // before it is read, so that no change is missed
	return s, s.readAgain()
}

func (s *reloadableSecret) current() string { return *s.value.Load() }

// readAgain takes over what the file holds now; what it held before stays where it cannot be used.
func (s *reloadableSecret) readAgain() error {
	value, err := secretfile.ReadFilled(s.setting, s.file)
	if err != nil {
		return err
	}
	s.value.Store(&value)
	return nil
}

// secrets are those that are taken over while the gateway runs.
type secrets struct {
	engineKey, handoffKey, adminToken *reloadableSecret
}

func (c *config) secrets() (s secrets, err error) {
	if s.engineKey, err = readSecret("engine-key-file", c.engines.key); err != nil {
		return s, err
	}
	if s.handoffKey, err = readSecret("trtllm-key-file", c.engines.trtllmKey); err != nil {
		return s, err
	}
	s.adminToken, err = readSecret("admin-token-file", c.access.adminTokenFile)
	return s, err
}

// followSecrets takes over what changes in files of secrets until the context ends.
func (n *Node) followSecrets(ctx context.Context) {
	var follows sync.WaitGroup
	for _, s := range []*reloadableSecret{n.secrets.engineKey, n.secrets.handoffKey, n.secrets.adminToken} {
		if s.file == "" {
			continue
		}
		stop := n.follow(ctx, s.setting, s.file, s.loaded, func() error {
			if err := s.readAgain(); err != nil {
				return err
			}
			n.log.Info("secret reloaded", "setting", s.setting)
			return nil
		})
		follows.Go(func() {
			<-ctx.Done()
			stop()
		})
	}
	follows.Wait()
}
