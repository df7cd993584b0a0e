package serving

import (
	"errors"

	"github.com/spf13/pflag"

	"github.com/tandem-gateway/tandem/pd/cost"
)

// costConfig is what a pair is assumed to cost, until servers and links have shown it, and how
// a pair is chosen by it.
type costConfig struct {
	cost.Model

	links cost.LinkPrior
}

func defaultCost() costConfig {
	return costConfig{Model: cost.Default(), links: cost.DefaultLinks()}
}

func (c *costConfig) bind(fs *pflag.FlagSet) {
	fs.StringVar((*string)(&c.Rule), "policy", string(c.Rule),
		"`rule` by which a pair is chosen: joint, or to compare with: prefill-first, least-load, round-robin, random; these need --binding arrival")
	fs.DurationVar(&c.Adapter.Load, "adapter-load", c.Adapter.Load,
		"assumed time to load an adapter, until loads were seen; 0: requests go anywhere, whatever must be loaded")
	fs.DurationVar(&c.Adapter.Swap, "adapter-swap", c.Adapter.Swap, "assumed time for a loaded adapter to get into the batch")
	fs.DurationVar(&c.Adapter.Slot, "adapter-place", c.Adapter.Slot,
		"assumed time until one of the adapters in a full batch makes way")
	fs.IntVar(&c.KVBytesPerToken, "kv-bytes-per-token", c.KVBytesPerToken,
		"KV cache of one token as it crosses a link, `bytes`; 0: the mean of what a model's servers show: SGLang reports it, vLLM with NIXL counts what it moved "+
			"(believed from 1,000 tokens on); until then, and of other engines, 131072: links learn their speed by the same figure, so that the time of a transfer comes out right once dozens were seen")
	fs.IntVar(&c.BlockTokens, "block-tokens", c.BlockTokens, "tokens of one KV block")
	fs.Float64Var(&c.links[cost.SameHost].BytesPerSecond, "link-host", c.links[cost.SameHost].BytesPerSecond, "assumed KV bandwidth within a host, `bytes per second`")
	fs.Float64Var(&c.links[cost.SameRack].BytesPerSecond, "link-rack", c.links[cost.SameRack].BytesPerSecond, "the same within a rack")
	fs.Float64Var(&c.links[cost.SameZone].BytesPerSecond, "link-zone", c.links[cost.SameZone].BytesPerSecond, "the same within a zone, and where no labels are known")
	fs.Float64Var(&c.links[cost.Far].BytesPerSecond, "link-far", c.links[cost.Far].BytesPerSecond, "the same between zones")
	fs.BoolVar(&c.PairsFirst, "pairs-first", c.PairsFirst,
		"decode servers compute prompts only where no pair can serve a request, and not where that is cheaper")
	fs.IntVar(&c.ChunkTokens, "decode-chunk", c.ChunkTokens,
		"prompt `tokens` that a decode server computes between two steps of its batch: the engine's max_num_batched_tokens")
	fs.IntVar(&c.StepTokens, "prefill-step", c.StepTokens,
		"prompt `tokens` that a prefill server computes in one step at most: the engine's max_num_batched_tokens")
	fs.BoolVar(&c.DecodeReuse, "decode-reuse", c.DecodeReuse, "decode takes over only the KV blocks that it lacks")
	fs.Float64Var(&c.CPULoad, "cpu-load", c.CPULoad,
		"KV from a server's CPU memory to its GPU, `bytes per second`; 0: it is not used")
	fs.Float64Var(&c.DiskLoad, "disk-load", c.DiskLoad, "KV from a server's disk to its GPU, `bytes per second`; 0: it is not used")
}

func (c *costConfig) validate() error { return errors.Join(c.Validate(), c.links.Validate()) }
