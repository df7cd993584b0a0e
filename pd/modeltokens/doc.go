// Package modeltokens has the token source of each model (Sources), opened when a request first
// asks for it, and passes between replicas what those learn: through a channel of Redis the tokens
// of prompts (Sync), and as values the contexts in which a translation of prompts was wrong, which
// pd/modelsync carries. pd finds the tokens of prompts with it; cmd opens sources and runs Sync.
package modeltokens
