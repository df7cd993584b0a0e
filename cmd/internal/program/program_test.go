package program

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Where a command is mistyped that stands under another, no help goes to where its output was to go.
func TestExecute_RefusesAMistypedCommandBelowAnother(t *testing.T) {
	for _, x := range []struct{ line, fault, printed string }{
		{"keys neww", `unknown command "neww" for "tool keys"; did you mean new?`, ""},
		{"keys zzzzzz", `unknown command "zzzzzz" for "tool keys"`, ""},
		{"completion bsh", `unknown command "bsh" for "tool completion"; did you mean bash?`, ""},
		{"keys new", "", "a key\n"},
		{"keys", "", "Usage:\n  tool keys\n"},
		{"completion zsh", "", "#compdef tool"},
	} {
		keys := &cobra.Command{Use: "keys"}
		keys.AddCommand(&cobra.Command{Use: "new", Run: func(cmd *cobra.Command, _ []string) { cmd.Println("a key") }})
		root := New("tool", "", keys)
		var out strings.Builder
		root.SetOut(&out)
		root.SetErr(&out)
		root.SetArgs(strings.Fields(x.line))
		fault := ""
		if err := execute(t.Context(), root); err != nil {
			fault = err.Error()
		}
		if fault != x.fault || !strings.Contains(out.String(), x.printed) || (out.Len() == 0) != (x.printed == "") {
			t.Errorf("%s: %q\n%s", x.line, fault, out.String())
		}
	}
}
