package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-gateway/tandem/cmd/internal/adminport"
	"github.com/tandem-gateway/tandem/gateway"
)

func drainCommand() *cobra.Command {
	var admin adminport.Port
	var undo, wait bool
	cmd := &cobra.Command{
		Use:   "drain SERVER",
		Short: "Send a server no new requests, and wait until it has none",
		Long: `Send a server no new requests; what it is serving runs to its end. SERVER is its name in
/debug/servers, such as 10.0.0.3:8000 or 10.0.0.3:8000/dp1.
Gateways that share a Redis all do so, also those that start later.
With --wait it ends with an error where the server leaves the configuration meanwhile: its
requests run on, and the gateway cannot say when they have ended.`,
		Example: "  tandem drain 10.0.0.3:8000 --wait && kubectl delete pod decode-3\n  tandem drain 10.0.0.3:8000 --undo",
		Args:    oneArgument("which server"),
		RunE: func(cmd *cobra.Command, args []string) error {
			server, method := serverOf(args[0]), http.MethodPost
			if undo {
				method = http.MethodDelete
			}
			err := admin.Do(cmd.Context(), method, "/drain/"+server)
			if errors.Is(err, adminport.ErrNotFound) {
				return fmt.Errorf("there is no server %s: %s names them", server, admin.Address+"/debug/servers")
			}
			if err != nil {
				return err
			}
			if !wait {
				return sayDrained(cmd.Context(), admin, server, undo, cmd.OutOrStdout())
			}
			return awaitDrained(cmd.Context(), admin, server, cmd.OutOrStdout())
		},
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, given []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(given) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return serverNames(cmd.Context(), admin, begun), cobra.ShellCompDirectiveNoFileComp
	}
	admin.AddFlags(cmd.Flags())
	cmd.Flags().BoolVar(&undo, "undo", false, "send it requests again")
	cmd.Flags().BoolVar(&wait, "wait", false, "end when it has no request any more; interrupt it to stop waiting")
	cmd.MarkFlagsMutuallyExclusive("undo", "wait")
	return cmd
}

// serverOf is the name of a server that may be given by its URL, as configurations have it.
func serverOf(given string) string {
	if _, address, isURL := strings.Cut(given, "://"); isURL {
		given = address
	}
	return strings.TrimSuffix(given, "/")
}

// completionTime is how long somebody who asks a shell to complete a name waits for the gateway.
const completionTime = time.Second

// serverNames are those of the gateway's servers that begin so, none where it does not answer.
func serverNames(ctx context.Context, admin adminport.Port, begun string) (names []string) {
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	var servers []gateway.ServerStatus
	if err := admin.Get(ctx, "/debug/servers", &servers); err != nil {
		return nil
	}
	for _, s := range servers {
		if strings.HasPrefix(s.ID, begun) {
			names = append(names, s.ID)
		}
	}
	return names
}

// statusOf is a server as the gateway has it, false where it has none of the name.
func statusOf(ctx context.Context, admin adminport.Port, server string) (status gateway.ServerStatus, there bool, err error) {
	var servers []gateway.ServerStatus
	if err := admin.Get(ctx, "/debug/servers", &servers); err != nil {
		return status, false, err
	}
	at := slices.IndexFunc(servers, func(s gateway.ServerStatus) bool { return s.ID == server })
	if at < 0 {
		return status, false, nil
	}
	return servers[at], true, nil
}

// othersUnaware is said while gateways that share a Redis may go on to send a server requests.
const othersUnaware = "other gateways may not know yet that it drains"

// sayDrained says what a server does now, and where other gateways may not know yet: not at once, and not while Redis
// does not answer.
func sayDrained(ctx context.Context, admin adminport.Port, server string, undo bool, out io.Writer) error {
	status, _, err := statusOf(ctx, admin, server)
	if err != nil {
		return err
	}
	switch {
	case undo && status.Pending:
		_, err = fmt.Fprintln(out, server, "takes requests again here; other gateways may not know yet")
	case undo:
		_, err = fmt.Fprintln(out, server, "takes requests again")
	case status.Pending:
		_, err = fmt.Fprintf(out, "%s drains here; %s (--wait waits until they do)\n", server, othersUnaware)
	default:
		_, err = fmt.Fprintf(out, "%s takes no new requests (--wait waits until it has none)\n", server)
	}
	return err
}

// drainPoll is the time between two looks at a server that drains.
const drainPoll = 500 * time.Millisecond

// errLeft is the end of a wait for a server that the gateway knows no more. What it was sent runs on, here and through
// other gateways, and nothing counts it; left is how much that was when it was last seen, -1 if never.
func errLeft(server string, left int) error {
	seen := "how many requests it had is not known"
	if left >= 0 {
		seen = fmt.Sprintf("it had %d when it was last seen", left)
	}
	return fmt.Errorf("%s has left the configuration while it drained, and the gateway cannot say whether its requests have ended: %s", server, seen)
}

// awaitDrained waits until a server has no request of the gateway, and says how many are left
// when that changes.
func awaitDrained(ctx context.Context, admin adminport.Port, server string, out io.Writer) error {
	ticker := time.NewTicker(drainPoll)
	defer ticker.Stop()
	for last := -1; ; {
		status, there, err := statusOf(ctx, admin, server)
		if err != nil {
			return err
		}
		if !there {
			return errLeft(server, last)
		}
		if !status.Draining {
			return fmt.Errorf("%s does not drain any more", server)
		}
		left := 0
		for _, requests := range status.OfAll {
			left += requests
		}
		switch pending := status.Pending; {
		case left == 0 && !pending:
			_, _ = fmt.Fprintln(out, server, "has no request any more")
			return nil
		case left != last && pending:
			_, _ = fmt.Fprintf(out, "%s has requests of this gateway: %d; %s\n", server, left, othersUnaware)
		case left != last:
			_, _ = fmt.Fprintf(out, "%s has requests: %d\n", server, left)
		}
		last = left
		select {
		case <-ctx.Done():
			if left == 0 {
				return fmt.Errorf("other gateways may not know yet that %s drains: %w", server, ctx.Err())
			}
			return fmt.Errorf("%s has requests still: %d: %w", server, left, ctx.Err())
		case <-ticker.C:
		}
	}
}
