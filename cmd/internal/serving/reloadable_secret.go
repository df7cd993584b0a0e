package serving

import (
	"context"
	"sync/atomic"

	"github.com/tandem-gateway/tandem/cmd/internal/secretfile"
)

// reloadableSecret is what a file holds that engines or operators ask for. It may be replaced while the gateway runs, as
// Kubernetes replaces the files of a mounted Secret.
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
	engineKey, handoffKey, adminToken, kv *reloadableSecret
}

func (c *config) secrets() (s secrets, err error) {
	if s.engineKey, err = readSecret("engine-key-file", c.engines.key); err != nil {
		return s, err
	}
	if s.handoffKey, err = readSecret("trtllm-key-file", c.engines.trtllmKey); err != nil {
		return s, err
	}
	if s.adminToken, err = readSecret("admin-token-file", c.access.adminTokenFile); err != nil {
		return s, err
	}
	s.kv, err = readSecret("kv-secret-file", c.kv.secretFile)
	return s, err
}

// followSecrets takes over what changes in files of secrets until the context ends. Those of Redis are read for each
// connection: of them it says that there is another one.
func (n *Node) followSecrets(ctx context.Context) {
	var stops []func()
	follow := func(setting, file string, loaded []byte, readAgain func() error) {
		if file == "" {
			return
		}
		stops = append(stops, n.follow(ctx, setting, file, loaded, func() error {
			if err := readAgain(); err != nil {
				return err
			}
			n.log.Info("secret reloaded", "setting", setting)
			return nil
		}))
	}
	for _, s := range []*reloadableSecret{n.secrets.engineKey, n.secrets.handoffKey, n.secrets.adminToken} {
		follow(s.setting, s.file, s.loaded, s.readAgain)
	}
	for setting, file := range n.cfg.redis.secretFiles() {
		follow(setting, file, contentHash(file), func() error {
			_, err := secretfile.Read(setting, file)
			return err
		})
	}
	follow(n.secrets.kv.setting, n.secrets.kv.file, n.secrets.kv.loaded, n.replaceKVSecret)
	<-ctx.Done()
	for _, stop := range stops {
		stop()
	}
}
