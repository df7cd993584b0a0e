package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func serveCommand() *cobra.Command {
	cfg := defaultConfig()
	var file string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the gateway in front of prefill and decode servers",
		Long: `Run the gateway in front of prefill and decode servers.

Settings come from flags, or from a YAML file whose names are the names of the
flags; flags win. The file is read again on SIGHUP and when it changes: servers
that were added, removed or relabelled are taken over without losing a request,
and a file with an error changes nothing.`,
		Example: `  tandem serve --prefill http://a:8000,http://b:8000 --decode http://c:8000
  tandem serve -c tandem.yaml --log-level debug`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), file, cmd.Flags()) },
	}
	cmd.Flags().StringVarP(&file, "config", "c", "", "YAML `file` with settings and servers")
	cmd.Flags().SortFlags = false
	cfg.bind(cmd.Flags())
	return cmd
}

func serve(ctx context.Context, file string, flags *pflag.FlagSet) error {
	cfg, err := loadConfig(file, flags)
	if err != nil {
		return err
	}
	log, err := cfg.logger()
	if err != nil {
		return err
	}
	n, err := newNode(ctx, cfg, log)
	if err != nil {
		return err
	}
	if file == "" {
		return n.run(ctx)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	changes, err := watchFile(ctx, file)
	if err != nil {
		return err
	}
	reloaded := make(chan struct{})
	go func() {
		defer close(reloaded)
		for range changes {
			next, err := loadConfig(file, flags)
			if err == nil {
				err = n.reload(next)
			}
			if err != nil {
				log.Error("the configuration is broken, the old one stays", "error", err.Error())
			}
		}
	}()
	err = n.run(ctx)
	stop()
	<-reloaded
	return err
}

// settleTime lets an editor or a mounted ConfigMap finish writing.
const settleTime = 200 * time.Millisecond

// watchFile reports changes of the file's content, and SIGHUP, until the context
// ends. The directory is watched and not the file: editors and Kubernetes
// replace files.
func watchFile(ctx context.Context, file string) (<-chan struct{}, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch the configuration: %w", err)
	}
	if err := watcher.Add(filepath.Dir(file)); err != nil {
		return nil, fmt.Errorf("watch the configuration: %w", err)
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	changes := make(chan struct{})
	go func() {
		defer close(changes)
		defer func() { _ = watcher.Close() }()
		defer signal.Stop(hangup)
		last := contentHash(file)
		settle := time.NewTimer(time.Hour)
		settle.Stop()
		tell := func() bool {
			select {
			case changes <- struct{}{}:
				return true
			case <-ctx.Done():
				return false
			}
		}
		for {
			select {
			case <-ctx.Done():
				return
			case <-watcher.Events:
				settle.Reset(settleTime)
			case <-watcher.Errors: // an overflow; look again
				settle.Reset(settleTime)
			case <-settle.C:
				now := contentHash(file)
				if bytes.Equal(now, last) {
					continue
				}
				last = now
				if !tell() {
					return
				}
			case <-hangup:
				last = contentHash(file)
				if !tell() {
					return
				}
			}
		}
	}()
	return changes, nil
}

// contentHash returns nil for a file that cannot be read.
func contentHash(file string) []byte {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	sum := sha256.Sum256(content)
	return sum[:]
}
