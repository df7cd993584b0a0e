package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/tandem-gateway/tandem/cmd/internal/output"
	"github.com/tandem-gateway/tandem/loadtest/agents"
	"github.com/tandem-gateway/tandem/loadtest/process"
	"github.com/tandem-gateway/tandem/loadtest/progress"
)

const agentsHelp = `Measure how much of agents' prompts is cached: simulated engines, the gateway, and
sessions of coding agents in front of them. All share a system prompt of 20,000 tokens and
20 tools; turns add 100 to 2,000 tokens or a tool's result of 10 to 50 kB; each session
sends four sub-agents off at once from its conversation. They speak chat, messages and
responses with the bodies of each API.

What engines report as cached is compared with an oracle that routes the same requests with
perfect knowledge to caches of the same size; rivals are the gateway's own policies that
know nothing of caches. A cluster has two prefill servers or more, whose caches are ample, or
hold together half of what all sessions need.`

func agentsCommand() *cobra.Command {
	cfg := agents.Default()
	var paths agentsPaths
	cmd := &cobra.Command{
		Use:   "agents",
		Short: "Measure how much of agents' prompts is cached, beside an oracle and rivals",
		Long:  agentsHelp,
		Example: "  tandem-lab agents\n  tandem-lab agents --policy tandem --servers 4 --cache ample\n" +
			"  tandem-lab agents --api messages --sub-agents 16 --policy tandem",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if cfg.From, err = process.Find(); err != nil {
				return err
			}
			return runAgents(cmd, cfg, &paths)
		},
	}
	f, l := cmd.Flags(), &cfg.Load
	f.SortFlags = false
	f.StringSliceVar(&cfg.APIs, "api", cfg.APIs, "APIs that the agents speak")
	f.IntSliceVar(&cfg.Servers, "servers", cfg.Servers, "prefill servers of the clusters")
	f.StringSliceVar(&cfg.Caches, "cache", cfg.Caches, "caches of the prefill servers: ample, half")
	f.StringSliceVar(&cfg.Policies, "policy", cfg.Policies, "policies of the gateway")
	f.IntVar(&l.Sessions, "sessions", l.Sessions, "sessions for each prefill server")
	f.IntVar(&l.Turns, "turns", l.Turns, "turns of a session, without those of its sub-agents")
	f.IntVar(&l.SubAgents, "sub-agents", l.SubAgents, "that begin at once from each session")
	f.IntVar(&l.SubTurns, "sub-turns", l.SubTurns, "turns of each sub-agent")
	f.IntVar(&l.SystemTokens, "system-tokens", l.SystemTokens, "of the system prompt that all share")
	f.IntVar(&l.Tools, "tools", l.Tools, "that agents may call")
	f.Uint64Var(&l.Seed, "seed", l.Seed, "of the sessions")
	f.IntVar(&cfg.Seeds, "seeds", cfg.Seeds, "of which each run is made, from --seed on; their turns are counted together")
	f.Float64Var(&cfg.Speed, "speed", cfg.Speed, "how many times as fast as in life engines compute and agents think")
	f.StringVar(&paths.json, "json", "", "write the figures as JSON to this `file`")
	f.StringVar(&paths.page, "report", "", "write the figures as a page to this `file` (HTML)")
	f.StringVar(&paths.markdown, "markdown", "", "write the figures as the table of docs/agents.md to this `file`")
	f.StringVar(&paths.turns, "turn-log", "", "write where the time of each turn went, and what was predicted of it, to this `file` (CSV)")
	f.StringVar(&cfg.LogPath, "log", "", "write what the gateway says, and its reasons for each change of server, to this `file`")
	return cmd
}

// agentsPaths are the files that the command writes; "" is none.
type agentsPaths struct{ json, page, markdown, turns string }

func runAgents(cmd *cobra.Command, cfg agents.Config, paths *agentsPaths) error {
	files, err := output.Create(paths.json, paths.page, paths.markdown, paths.turns)
	if err != nil {
		return err
	}
	if paths.turns != "" {
		cfg.Turns = files[3]
	}
	show, done := progress.Runs(os.Stderr)
	report, err := agents.Run(cmd.Context(), cfg, show)
	done()
	if err != nil {
		return errors.Join(err, files.Close())
	}
	if err := errors.Join(report.WriteTable(cmd.OutOrStdout()), report.WriteJSON(files[0]), report.WritePage(files[1]), report.WriteMarkdown(files[2]), files.Close()); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}
