// Package tokens knows the token ids of a prompt, or of its beginning, before any engine
// has seen it: the gateway needs them to look up which blocks of KV servers hold.
//
// A Source serves one model in one of four modes: it asks an engine, remembers the tokens that
// prefills reported, runs a tokenizer of its own, or gives keys of text chunks instead
// of tokens. DESIGN.md says when each is right, and why what is remembered is true.
//
// A request takes this way: source.go (the mode) -> body.go, text.go (the prompt as
// hashes) -> memory.go (what is known of it) -> ask.go, question.go (engine mode
// only), chat_form.go (messages and responses as chats) -> claims.go (was it true?).
// second_sample.go is how the memory learns. Tokenizers: encoder.go -> conversation.go,
// template.go (the text) -> encode.go, bpe.go (its tokens).
//
// Token ids that an engine was asked for on the gateway's own account (prompt_token_ids,
// token_ids) must never reach a client that did not ask for them. Taking them out of what is
// relayed is the relay's business.
package tokens
