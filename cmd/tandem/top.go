package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/tandem-gateway/tandem/cmd/internal/adminport"
	"github.com/tandem-gateway/tandem/cmd/internal/top"
	"github.com/tandem-gateway/tandem/gateway/live"
)

func topCommand() *cobra.Command {
	var admin adminport.Port
	var model string
	var once bool
	interval := live.Every
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show in the terminal what the gateway does now",
		Long: `Show in the terminal what the gateway does now: what its live page (/ui/ on the admin
port) shows, as lines. q or Ctrl-C ends it.`,
		Example: "  tandem top --admin http://127.0.0.1:8081\n  tandem top --once --model llama | grep down",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if interval <= 0 {
				return errors.New("interval is not a positive duration")
			}
			read := func(ctx context.Context) (state live.State, err error) {
				err = admin.Get(ctx, "/ui/state?model="+url.QueryEscape(model), &state)
				return state, err
			}
			if !once && term.IsTerminal(int(os.Stdout.Fd())) && term.IsTerminal(int(os.Stdin.Fd())) {
				return watchTop(cmd.Context(), interval, read)
			}
			state, err := read(cmd.Context())
			if err != nil {
				return err
			}
			for _, line := range top.Draw(&state, top.Size{}, false) {
				if _, err := fmt.Fprintln(cmd.OutOrStdout(), line); err != nil {
					return fmt.Errorf("print the view: %w", err)
				}
			}
			return nil
		},
	}
	admin.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&model, "model", "", "`name` of the model whose times are shown; empty: all")
	cmd.Flags().BoolVar(&once, "once", false, "print it once, whole and without colour, as where the output is not a terminal")
	cmd.Flags().DurationVar(&interval, "interval", interval, "time between two views")
	return cmd
}

// watchTop draws on the terminal of this process, whose keys it reads as they are typed.
func watchTop(ctx context.Context, interval time.Duration, read func(context.Context) (live.State, error)) error {
	stdin, stdout := int(os.Stdin.Fd()), int(os.Stdout.Fd())
	before, err := term.MakeRaw(stdin)
	if err != nil {
		return fmt.Errorf("read keys: %w", err)
	}
	defer func() { _ = term.Restore(stdin, before) }()
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	return top.Watch(ctx, top.Terminal{
		Keys: typedKeys(), Resized: resized, Out: os.Stdout, Colour: os.Getenv("NO_COLOR") == "",
		Size: func() top.Size {
			width, height, err := term.GetSize(stdout)
			if err != nil {
				return top.Size{Width: 80, Height: 24}
			}
			return top.Size{Width: width, Height: height}
		},
	}, interval, read)
}

// typedKeys are the bytes of standard input. What reads them ends with the process, as a read of a
// terminal cannot be ended.
func typedKeys() <-chan byte {
	keys := make(chan byte)
	go func() {
		defer close(keys)
		typed := make([]byte, 1)
		for {
			if n, err := os.Stdin.Read(typed); err != nil || n == 0 {
				return
			}
			keys <- typed[0]
		}
	}()
	return keys
}
