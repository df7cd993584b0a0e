// Command tandem-lab is what judges Tandem, and what it is tried on: simulated engines, load,
// the simulators, and measurements under faults and overload. It starts the gateway from the
// program tandem beside it.
package main

import (
	"github.com/spf13/cobra"

	"github.com/tandem-gateway/tandem/cmd/internal/program"
)

func main() { program.Main(rootCommand()) }

func rootCommand() *cobra.Command {
	return program.New("tandem-lab", "Simulated engines, load and simulators for the gateway tandem, and what judges it",
		demoCommand(),
		engineCommand(),
		loadCommand(),
		simCommand(),
		liveCommand(), agentsCommand(),
		chaosCommand(),
		overloadCommand(),
		benchProxyCommand(), benchEnginesCommand(), profileCommand(),
		soakCommand(),
		mutateCommand(),
		docsCommand(),
	)
}
