package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// oneArgument refuses a command without its argument, or with several, and says what that is.
func oneArgument(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 {
			return nil
		}
		return fmt.Errorf("say %s: %s; %d were given", what, cmd.UseLine(), len(args))
	}
}
