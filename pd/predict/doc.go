// Package predict learns from what was observed what is to be expected: how long answers are
// (Outputs) and prompts whose tokens are not known (Prompts), how far predicted times are off
// (Margin, TTFTMargin), when a request that is predicted to be late is sent all the same, so
// that a wrong prediction is corrected (DeadlineProbes), what the caches of servers save
// (CacheSavings), and whether they keep a piece of a prompt until the next one (PieceLosses).
//
// It knows no servers, no requests under way, no network and no Redis: it is given names,
// sizes and times. pd, gateway and cmd import it; OutputRecord and PromptRecord are what pd
// shares between replicas.
package predict
