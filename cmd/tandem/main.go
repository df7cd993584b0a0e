// Command tandem is an HTTP gateway for disaggregated LLM serving: it runs each
// OpenAI request as a prefill on one server and a decode on another, and chooses
// the two together. See the README for a first run.
package main

import (
	"github.com/spf13/cobra"

	"github.com/tandem-gateway/tandem/cmd/internal/program"
	"github.com/tandem-gateway/tandem/cmd/internal/serving"
)

func main() { program.Main(rootCommand()) }

func rootCommand() *cobra.Command {
	return program.New("tandem", "An HTTP gateway that runs each LLM request as a prefill and a decode, chosen as a pair",
		serving.Command(),
		checkCommand(),
		keysCommand(),
		explainCommand(),
		linksCommand(),
		topCommand(),
		drainCommand(),
		registerCommand(),
		calibrateCommand(),
		adviseCommand(),
		replayCommand(),
		scalerCommand(),
	)
}
