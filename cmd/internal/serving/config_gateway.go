package serving

import (
	"github.com/spf13/pflag"

	"github.com/tandem-gateway/tandem/gateway"
)

// gatewayConfig is what clients may send, and what they see.
type gatewayConfig struct {
	gateway.Config

	aliases []string // as gateway.ParseAlias reads them
}

func (c *gatewayConfig) bind(fs *pflag.FlagSet) {
	fs.BoolVar(&c.ExposePair, "expose-pair", c.ExposePair,
		"name the servers that answered in x-tandem-prefill and x-tandem-decode")
	fs.BoolVar(&c.Timing, "server-timing", c.Timing,
		"tell clients in a Server-Timing header what the time of their request went to: wait, choose, prefill, transfer, total")
	fs.BoolVar(&c.UsageExtension, "usage-extension", c.UsageExtension,
		"add to the usage in answers, as usage.tandem, the tokens that caches had of the prompt and the share of the time that the request waited")
	fs.BoolVar(&c.SessionHints, "session-hints", c.SessionHints,
		"take sessions as the tenant names them by x-session-id and such headers, prompt_cache_key, user or metadata.user_id: to predict how long "+
			"their answers are, and to choose the servers that served them last where servers are predicted to be equally fast")
	fs.IntVar(&c.MaxBody, "max-body", c.MaxBody, "largest request body, `bytes`")
	fs.IntVar(&c.MaxHeader, "max-header", c.MaxHeader, "largest request header block, `bytes`")
	fs.DurationVar(&c.ReadTimeout, "read-timeout", c.ReadTimeout, "time for a whole request to arrive")
	fs.DurationVar(&c.ConnIdle, "conn-idle", c.ConnIdle, "time that a client's connection may idle between requests")
	fs.DurationVar(&c.WriteTimeout, "write-timeout", c.WriteTimeout, "time for the client to take one piece of an answer")
	fs.IntVar(&c.TenantLabels, "tenant-labels", c.TenantLabels,
		"tenants that metrics name, the first that come; others are one")
	fs.BoolVar(&c.SharedKV, "tenants-share-kv", c.SharedKV,
		"serve tenants also where engines drop cache_salt, so that they share cached prompts and can find out by time what others asked: "+
			"/v1/messages of vLLM before 0.32 and of SGLang where it cannot be sent as a chat, all but chat of TensorRT-LLM; else such requests are refused")
	fs.StringSliceVar(&c.Origins, "cors-origin", c.Origins,
		"`origins` whose pages may ask from a browser, such as https://chat.example.com, https://*.example.com or *; none: no page of another site")
	fs.StringSliceVar(&c.aliases, "model-alias", c.aliases,
		"names for clients beside those of the models, as `name=model`, or name=model=90|other=10 for a split by weight; requests of "+
			"one user or prompt_cache_key stay with one model")
}

// read reads the settings that are lists of texts.
func (c *gatewayConfig) read() error {
	c.Aliases = nil
	for _, text := range c.aliases {
		a, err := gateway.ParseAlias(text)
		if err != nil {
			return err
		}
		c.Aliases = append(c.Aliases, a)
	}
	return nil
}
