// Command tandem is an HTTP gateway for disaggregated LLM serving: it runs each
// OpenAI request as a prefill on one server and a decode on another, and chooses
// the two together. See the README for a first run.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C does not wait for the drain
	if err := rootCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "tandem: "+err.Error())
		os.Exit(1)
	}
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "tandem",
		Short:         "An HTTP gateway that runs each LLM request as a prefill and a decode, chosen as a pair",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(nearestFlag)
	root.AddCommand(
		demoCommand(),
		serveCommand(),
		checkCommand(),
		keysCommand(),
		overloadCommand(),
		explainCommand(),
		registerCommand(),
		engineCommand(),
		loadCommand(),
		simCommand(),
		calibrateCommand(),
		adviseCommand(),
		scalerCommand(),
		chaosCommand(),
		soakCommand(),
		liveCommand(),
		versionCommand(),
		docsCommand(),
	)
	return root
}

// nearestFlag adds the flag that was most likely meant to an error about one that is not
// there.
func nearestFlag(cmd *cobra.Command, err error) error {
	var missing *pflag.NotExistError
	if !errors.As(err, &missing) || missing.GetSpecifiedShortnames() != "" {
		return err
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
	return fmt.Errorf("%w%s", err, meant("--"+missing.GetSpecifiedName(), names))
}
