package program

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
)

// asDrain has this test's binary run as a program that ends slowly.
const asDrain = "TANDEM_TEST_AS_DRAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asDrain) == "" {
		os.Exit(m.Run())
	}
	os.Args = []string{"tool", "drain"}
	Main(New("tool", "", &cobra.Command{Use: "drain", Run: func(cmd *cobra.Command, _ []string) {
		fmt.Println("begun")
		<-cmd.Context().Done()
		fmt.Println("ending")
		time.Sleep(time.Minute) // longer than the test waits
	}}))
}

// A second signal ends a program that is still ending, as a signal does, and nobody has to guess why it is gone.
func TestMain_ASecondSignalEndsItAndSaysSo(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), asDrain+"=1")
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	awaitLine := func(want string) {
		line := make([]byte, len(want)+1)
		if _, err := io.ReadFull(out, line); err != nil || string(line) != want+"\n" {
			t.Fatalf("%q (%v), want %s", line, err, want)
		}
	}
	signal := func() { _ = cmd.Process.Signal(syscall.SIGTERM) } // it may be gone
	awaitLine("begun")
	signal()
	awaitLine("ending")
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	again := time.NewTicker(50 * time.Millisecond) // the first one may come before it is waited for
	defer again.Stop()
	for deadline := time.After(10 * time.Second); ; {
		select {
		case <-again.C:
			signal()
			continue
		case <-deadline:
			t.Fatal("it does not end")
		case <-ended:
		}
		break
	}
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || status.Signal() != syscall.SIGTERM {
		t.Errorf("it ended with %v", cmd.ProcessState)
	}
	if !strings.Contains(said.String(), "tool: a second signal (terminated) ends it at once") {
		t.Errorf("it said %q", said.String())
	}
}

// timeout(1) sends its signal to the process and to the process' group: that is one signal, and streams run to their end.
func TestAwaitSecond_ASignalSentTwiceIsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals := make(chan os.Signal, 1)
		ended := make(chan os.Signal, 1)
		go func() { ended <- awaitSecond(signals) }()
		synctest.Wait()
		signals <- syscall.SIGTERM
		synctest.Wait()
		select {
		case <-ended:
			t.Fatal("the first signal sent twice counts as a second one")
		case <-time.After(sentTwice):
		}
		signals <- syscall.SIGINT
		if came := <-ended; came != syscall.SIGINT {
			t.Errorf("ended by %v", came)
		}
	})
}

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
