package serving

import (
	"context"
	stdlog "log"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.opentelemetry.io/otel"

	"github.com/tandem-gateway/tandem/cmd/internal/memory"
)

// Command is `tandem serve`, which tests run as a process of their own too.
func Command() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the gateway in front of prefill and decode servers",
		Long: `Run the gateway in front of prefill and decode servers.

Settings come from flags, or from a YAML file with the names of the flags; flags
win. The file is read again on SIGHUP and when it changes, without losing a
request; a file with an error changes nothing.`,
		Example: `  tandem serve --prefill http://a:8000,http://b:8000 --decode http://c:8000
  tandem serve -c tandem.yaml --log-level debug`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), file, cmd.Flags()) },
	}
	AddFlags(cmd, &file)
	return cmd
}

func serve(ctx context.Context, file string, flags *pflag.FlagSet) error {
	signal.Ignore(syscall.SIGHUP) // until what reads files again takes it: it would end a gateway that starts
	loaded := contentHash(file)   // before it is read, so that no change is missed
	cfg, err := loadConfig(file, flags)
	if err != nil {
		return err
	}
	log, err := cfg.telemetry.logger()
	if err != nil {
		return err
	}
	defer memory.Apply(log)()
	if !cfg.access.adminProfiles {
		memory.RecordNothing()
	}
	RouteRedisLog(log)
	stdlog.SetFlags(0)
	stdlog.SetOutput(libraryLog{log})
	otel.SetErrorHandler(tracingFaults(log))
	keysLoaded := contentHash(cfg.access.keysFile)
	n, err := newNode(ctx, cfg, log)
	if err != nil {
		return err
	}
	if file != "" {
		defer n.followConfig(ctx, file, loaded, flags)()
	}
	if cfg.access.keysFile != "" {
		defer n.follow(ctx, "keys", cfg.access.keysFile, keysLoaded, n.reloadKeys)()
	}
	return n.Run(ctx)
}
