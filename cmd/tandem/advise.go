package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-gateway/tandem/autoscale/advise"
	"github.com/tandem-gateway/tandem/autoscale/mix"
	"github.com/tandem-gateway/tandem/cmd/internal/output"
)

const adviseHelp = `Say for a given traffic whether prefill and decode on different servers is worth it,
how many of which hardware that takes in its busiest time, and what servers that do
both would take.

The log has a JSON object a line: timestamp in milliseconds, input_length and
output_length in tokens, and, where prefixes are known, hash_ids of the prompt's blocks
of 512 tokens (Mooncake's format). An access log will do: time (RFC 3339), prompt_tokens
and completion_tokens, in any order. Hardware is what tandem calibrate measured:

    --hardware NAME=FILE,cost=3.2,gpus=2,have=16,kind=h100

cost is of a server for an hour (1 without it), gpus of a server (1), have how many
GPUs there are (any number). Variants of one kind are parallel layouts of the same GPUs,
and share those that there are: of each kind with several it is said which layout has
prompts computed soonest, many slow servers or few fast ones on as many GPUs.`

// adviseOptions are the flags of `tandem advise`.
type adviseOptions struct {
	log, svg string
	hardware []string
	question advise.Question
}

func adviseCommand() *cobra.Command {
	opts := adviseOptions{question: advise.Question{Window: 15 * time.Minute, Use: 0.8, TTFT: 10 * time.Second, ITL: 40 * time.Millisecond}}
	cmd := &cobra.Command{
		Use:     "advise",
		Short:   "Say whether disaggregation is worth it for a traffic, and with which servers",
		Long:    adviseHelp,
		Example: "  tandem calibrate --server http://a:8000 --out h100.json\n  tandem advise --log loadtest/traces/mooncake_conversation.jsonl --hardware h100=h100.json,cost=3 --svg advice.svg",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runAdvise(cmd, opts) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&opts.log, "log", "", "`file` with the traffic")
	f.StringArrayVar(&opts.hardware, "hardware", nil, "`variant` of hardware, as above; may be repeated")
	f.DurationVar(&opts.question.TTFT, "ttft-slo", opts.question.TTFT, "objective for the first token, of a prompt that does not wait")
	f.DurationVar(&opts.question.ITL, "itl-slo", opts.question.ITL, "objective for the time between tokens")
	f.DurationVar(&opts.question.Window, "window", opts.question.Window, "the busiest such `time` is planned for, or all of a shorter log")
	f.Float64Var(&opts.question.Use, "use", opts.question.Use, "`share` of a server's capacity that is planned with, more than 0 and at most 1")
	f.StringVar(&opts.svg, "svg", "", "draw it to this `file`")
	for _, name := range []string{"log", "hardware"} {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // it is defined above
		}
	}
	return cmd
}

func runAdvise(cmd *cobra.Command, opts adviseOptions) error {
	var err error
	if opts.question.Variants, err = mix.ParseVariants(opts.hardware); err != nil {
		return err
	}
	log, err := os.Open(opts.log)
	if err != nil {
		return fmt.Errorf("log: %w", err)
	}
	defer log.Close()
	traffic, err := advise.Read(log)
	if err != nil {
		return fmt.Errorf("log %s: %w", opts.log, err)
	}
	files, err := output.Create(opts.svg)
	if err != nil {
		return err
	}
	advice, err := advise.Ask(traffic, opts.question)
	if err != nil {
		return errors.Join(err, files.Close())
	}
	if err := errors.Join(advice.WriteSVG(files[0], traffic), files.Close()); err != nil {
		return fmt.Errorf("write the picture: %w", err)
	}
	return advice.WriteTable(cmd.OutOrStdout())
}
