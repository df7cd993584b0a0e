package serving

import (
	"github.com/spf13/cobra"

	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/firsttoken"
	"github.com/tandem-gateway/tandem/pd/order"
)

// choices are the values of settings that have only a few, for shells that complete them.
func choices() map[string][]string {
	return map[string][]string{
		"policy":      {string(cost.Joint), string(cost.PrefillFirst), string(cost.LeastLoad), string(cost.RoundRobin), string(cost.Random)},
		"binding":     {string(pd.OnArrival), string(pd.Late)},
		"objective":   {string(order.Auto), string(order.Latency), string(order.Throughput)},
		"first-token": {string(firsttoken.FromPrefill), string(firsttoken.FromDecode)},
		"log-level":   {"debug", "info", "warn", "error"},
	}
}

// completeChoices lets shells complete the values of a command's settings.
func completeChoices(cmd *cobra.Command) {
	for name, values := range choices() {
		if err := cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
			panic(err) // it is a setting
		}
	}
}
