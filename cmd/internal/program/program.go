// Package program is what the two programs have in common as commands: the root with its
// version, how they end by signals, and the hint at a flag or command that was mistyped.
package program

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tandem-gateway/tandem/cmd/internal/nearest"
	"github.com/tandem-gateway/tandem/cmd/internal/version"
)

// New returns a program that has the commands, and version beside them, as a command and as a flag.
func New(name, short string, commands ...*cobra.Command) *cobra.Command {
	root := &cobra.Command{
		Use:           name,
		Short:         short,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version.String(),
	}
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetFlagErrorFunc(nearestFlag)
	root.AddCommand(commands...)
	root.AddCommand(versionCommand(name))
	return root
}

// Main runs a program to its end. The first SIGINT or SIGTERM ends its context, a second one
// the process, which says so.
func Main(root *cobra.Command) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, func() { endBySecondSignal(root.Name(), stop) }) // a second Ctrl-C does not wait for the drain
	if err := execute(ctx, root); err != nil {
		fmt.Fprintln(os.Stderr, root.Name()+": "+err.Error())
		os.Exit(1)
	}
}

// endBySecondSignal waits for a signal after the first one, whose handling stop ends, and then ends the process as
// that signal does where nobody handles it.
func endBySecondSignal(name string, stop func()) {
	second := make(chan os.Signal, 1)
	signal.Notify(second, os.Interrupt, syscall.SIGTERM)
	stop()
	came := awaitSecond(second)
	fmt.Fprintf(os.Stderr, "%s: a second signal (%s) ends it at once; what was under way is cut off\n", name, came)
	signal.Reset(os.Interrupt, syscall.SIGTERM)
	if number, ok := came.(syscall.Signal); ok {
		_ = syscall.Kill(syscall.Getpid(), number) // it is this process
		time.Sleep(time.Second)                    // the signal comes to a thread of the runtime
		os.Exit(128 + int(number))                 // it is ignored, as whoever began the program had it
	}
}

// sentTwice is within what time a second signal is the first one again: timeout(1), and some that run containers, send
// it to the process and to its group.
const sentTwice = 500 * time.Millisecond

// awaitSecond waits for a signal that is not the first one sent twice.
func awaitSecond(signals <-chan os.Signal) os.Signal {
	first := time.Now()
	for came := range signals {
		if time.Since(first) >= sentTwice {
			return came
		}
	}
	return nil // it is never closed
}

// execute runs a program. Of a command that only holds others cobra would print the help, as if all were well,
// where one of them is mistyped.
func execute(ctx context.Context, root *cobra.Command) error {
	root.InitDefaultCompletionCmd() // else cobra adds it too late for what follows
	for _, cmd := range root.Commands() {
		if cmd.HasSubCommands() && !cmd.Runnable() {
			cmd.Args, cmd.RunE, cmd.DisableFlagsInUseLine = noCommand, printHelp, true
		}
	}
	return root.ExecuteContext(ctx)
}

// noCommand refuses the name of a command that is not there, with the one that was most likely meant.
func noCommand(cmd *cobra.Command, args []string) error {
	err := cobra.NoArgs(cmd, args)
	if err == nil {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	return fmt.Errorf("%w%s", err, nearest.Hint(args[0], names))
}

func printHelp(cmd *cobra.Command, _ []string) error { return cmd.Help() }

func versionCommand(name string) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), name, version.String())
			return err
		},
	}
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
	return fmt.Errorf("%w%s", err, nearest.Hint("--"+missing.GetSpecifiedName(), names))
}
