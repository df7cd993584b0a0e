package serving

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// AddFlags gives a command that reads a configuration its flags: file, and one for each setting.
// Its help shows the settings that most gateways set, by groups, and with --help-all every one.
func AddFlags(cmd *cobra.Command, file *string) {
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(file, "config", "c", "", "YAML `file` with settings and servers")
	cfg := defaultConfig()
	cfg.bind(flags)
	var all helpAll
	flags.Var(&all, "help-all", "help with every setting")
	flags.Lookup("help-all").NoOptDefVal = "true"
	completeChoices(cmd)
	cmd.SetHelpFunc(func(cmd *cobra.Command, _ []string) { printHelp(cmd.OutOrStdout(), cmd, bool(all)) })
}

// helpAll asks for help where it is set, as --help does.
type helpAll bool

func (h *helpAll) Set(string) error {
	*h = true
	return pflag.ErrHelp
}

func (h *helpAll) String() string { return "" }
func (h *helpAll) Type() string   { return "bool" }

// printHelp writes what a command does, and its settings by groups: all, or those that come first.
func printHelp(out io.Writer, cmd *cobra.Command, all bool) {
	about := cmd.Short + "."
	if cmd.Long != "" {
		about = cmd.Long
	}
	_, _ = fmt.Fprintf(out, "%s\n\nUsage:\n  %s\n\nExamples:\n%s\n\n", about, cmd.UseLine(), cmd.Example)
	file := cmd.Flags().Lookup("config")
	kind, usage := pflag.UnquoteUsage(file)
	_, _ = fmt.Fprintf(out, "  %-28s %s\n", "-"+file.Shorthand+", --"+file.Name+" "+kind, usage)
	if all {
		printAll(out)
	} else {
		printFirst(out)
	}
}

func printAll(out io.Writer) {
	for _, group := range Settings() {
		_, _ = fmt.Fprintf(out, "%s:\n%s\n", group.Title, group.Flags.FlagUsages())
	}
}

// printFirst writes a line for each setting that comes first in its group, and how many there are
// beside them.
func printFirst(out io.Writer) {
	var others []string
	for _, group := range Settings() {
		count := 0
		group.Flags.VisitAll(func(*pflag.Flag) { count++ })
		if len(group.First) == 0 {
			others = append(others, fmt.Sprintf("%s (%d)", group.Title, count))
			continue
		}
		_, _ = fmt.Fprintf(out, "%s (%d of %d):\n", group.Title, len(group.First), count)
		for _, name := range group.First {
			f := group.Flags.Lookup(name)
			kind, usage := pflag.UnquoteUsage(f)
			usage = afterFirstClause.ReplaceAllString(usage, "")
			if f.DefValue != "" && f.DefValue != "[]" && f.DefValue != "false" {
				usage += " (default " + f.DefValue + ")"
			}
			_, _ = fmt.Fprintf(out, "  --%-26s %s\n", name+" "+kind, usage)
		}
	}
	_, _ = fmt.Fprintln(out, "Other groups:")
	for some := range slices.Chunk(others, 3) {
		_, _ = fmt.Fprintln(out, " ", strings.Join(some, ", "))
	}
	_, _ = fmt.Fprintln(out, "Every setting: --help-all, or docs/configuration.md.")
}

// afterFirstClause is what follows what a setting is: how it is written, and what else may be said.
var afterFirstClause = regexp.MustCompile(`[;:,]? \(.*|[;:] .*|, (such )?as .*|, save .*`)
