package tokens

import (
	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/kvstate/jsonscan"
)

// API is the kind of path that a prompt came by.
type API string

// The paths that have a prompt.
const (
	Chat        API = "chat"
	Completions API = "completions"
	Responses   API = "responses"
	Messages    API = "messages"
)

// Mode is how a model's tokens are known.
type Mode string

// The modes; DESIGN.md says when each is right.
const (
	Engine      Mode = "engine"      // ask an engine
	Learned     Mode = "learned"     // remember what prefills answered
	Tokenizer   Mode = "tokenizer"   // a tokenizer.json and a chat template
	Approximate Mode = "approximate" // chunks of text instead of tokens
)

// Prompt is what decides the tokens of a request.
type Prompt struct {
	API API
	// Body is the request as engines get it: one well-formed JSON object, no key
	// twice. It is only read, and only during the call.
	Body    []byte
	Long    jsonscan.Long // strings of Body; nil: they are not known
	Model   string        // as the client named it
	Adapter string        // LoRA name, "" for none
	Salt    string        // cache_salt, "" for none

	engine string // whose conversions count, see chatForm; "" is vLLM
}

// Method is how tokens were found.
type Method string

// The methods.
const (
	ByRequest     Method = "request"     // the prompt is token ids
	ByEngine      Method = "engine"      // an engine was asked for this very request
	ByTokenize    Method = "tokenize"    // its /tokenize was, which applies the model's template: see claims.go
	ByTranslation Method = "translation" // one was asked for the chat that engines make of it
	ByTokenizer   Method = "tokenizer"   // the gateway's own tokenizer and template
	ByPrefill     Method = "prefill"     // prefill answered with them
)

// Tokens is what is known of a prompt's tokens. Token ids and chunks are different
// types so that no index can mix them: a result has one or the other.
type Tokens struct {
	Mode Mode
	// IDs are leading token ids of the prompt. They are shared: do not change
	// them.
	IDs []uint32
	// Hashed keeps the hashes of their blocks, where IDs are the beginning of what is remembered; else nil.
	Hashed *kvstate.Hashed
	// Certain is how many of IDs are certain: what an engine or a tokenizer returned for
	// this very prompt, or what two prompts with this one's beginning showed. The
	// others follow from how the model's template has treated prompts of this form
	// so far.
	Certain int
	// Complete says that IDs are all of the prompt's tokens.
	Complete bool
	// By is how they were found.
	By Method
	// Unknown is why there are neither IDs nor Chunks; "" where there are.
	Unknown Reason
	// Teaches says that the prompt's token ids would be news: its prefill should be asked
	// for them (return_token_ids, of /v1/responses enable_response_messages) and Learn be given them.
	Teaches bool
	// Media are the images and the like behind place-holders in IDs, in order.
	Media []Medium
	// Chunks are the keys of the prompt's leading chunks of ChunkBytes bytes of text,
	// in approximate mode.
	Chunks []Chunk
	// Text are the keys of the same chunks in engine mode, beside IDs: equal text may come of
	// which the tokens are not known, or not in time; and in learned mode in place of IDs.
	Text []Chunk
	// Opening is a hash of the text before the first message of the assistant, which all turns of
	// a conversation share, in engine and learned mode; 0 where there is none.
	Opening uint64
	// Whole is a hash of all of the text, and Before of the text before the last messages of the
	// assistant: the Whole of the turn before. Where Opening is 0 they are, too.
	Whole, Before uint64
	// Adapter and Salt are the prompt's. The KV of equal tokens differs by them, so
	// they belong into every key made from IDs or Chunks.
	Adapter string
	Salt    string
	// Later is what an engine is still asked for, where the request need not wait for it, or has
	// waited long enough; nil: none is.
	Later *Later

	context, root uint64 // of the prompt
	dropped       int    // of IDs, where they were let go of
}

// Count is how many leading tokens of the prompt are known, or were before DropIDs.
func (k *Tokens) Count() int { return max(len(k.IDs), k.dropped) }

// DropIDs lets go of the ids, four bytes each. What engines count in the prompt can still be held against them.
func (k *Tokens) DropIDs() { k.dropped, k.IDs, k.Hashed = k.Count(), nil, nil }

// Medium is one image or the like: Length place-holder tokens from Offset on.
type Medium struct {
	Hash   string // as the engine names it in its KV events
	Offset int
	Length int
}

// Chunk is the key of one chunk of a prompt's text and all text before it.
type Chunk uint64
