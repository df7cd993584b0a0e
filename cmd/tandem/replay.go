package main

import (
	"github.com/spf13/cobra"

	"github.com/tandem-gateway/tandem/cmd/internal/serving"
)

const replayHelp = `Say where the requests of a recorded log would go on the servers of a configuration, and
when their first tokens would come. Nothing is sent: the gateway's own order and choice say
when each request goes and where to, and what is predicted is taken to come true. So it can
be tried what another server, link, rack, binding or policy would change.

The log is one that tandem advise reads: JSON lines with timestamp in milliseconds,
input_length and output_length in tokens, and, where prefixes are known, hash_ids of the
prompt's blocks of 512 tokens (Mooncake's format); or an access log with time,
prompt_tokens and completion_tokens.

With --each it prints each request as it goes: its servers, what they hold of it, how long
it waited for its turn, and the time to its first token. Servers are as fast, and have as
much KV, as a file of tandem calibrate says (--capacity); without it they are as is assumed
of new servers, with room for all KV.

Prompts are not cut into pieces, and transfers do not slow each other down: for that there
is tandem-lab sim. The same log and settings print the same.`

func replayCommand() *cobra.Command {
	var file string
	var opts serving.ReplayOptions
	cmd := &cobra.Command{
		Use:     "replay LOG",
		Short:   "Say where the requests of a log would go, without sending any",
		Long:    replayHelp,
		Example: "  tandem replay log.jsonl -c tandem.yaml --capacity h100.json\n  tandem replay log.jsonl -c tandem.yaml --binding arrival --policy least-load",
		Args:    oneArgument("which file has the log"),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.Log = args[0]
			return serving.Replay(file, cmd.Flags(), opts, cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&opts.Each, "each", false, "print each request")
	serving.AddFlags(cmd, &file)
	return cmd
}
