package tokens

import (
	"errors"
	"fmt"
	"time"
)

// Config is how the tokens of one model are known. Default gives the values that are
// used unless the comment says otherwise.
type Config struct {
	Model string // a label; required
	Mode  Mode   // required

	// MemoryBytes bounds what is remembered: known prompts (engine, learned), or
	// encoded pieces of text (tokenizer).
	MemoryBytes int64

	// AskWait is how long a request waits for an engine's answer (engine), if its prompt has up to 64 KiB of text. For
	// a longer one it waits as much longer, as long as AskTimeout at most.
	AskWait time.Duration
	// AskTimeout bounds an ask that no request waits for any more; its answer serves the
	// conversation's next turn.
	AskTimeout time.Duration
	// AskOver is how much of a prompt may be unknown, in bytes of text, for a request
	// to go on with what the memory says while the engine is asked in the background.
	// 0 waits for the engine on every prompt that is not known completely.
	AskOver int
	// MaxAsks bounds the asks under way; above it, what the memory says must do.
	MaxAsks int

	// Engine names the engine of the model's servers, as they report it: "vllm", "sglang".
	// Each has its own way to make chats of other APIs. nil is vLLM.
	Engine func() string

	// TokenizerFile is a Hugging Face tokenizer.json (tokenizer). TemplateFile is the
	// Jinja chat template, as text or as a tokenizer_config.json with a chat_template;
	// without it only completions have tokens.
	TokenizerFile string
	TemplateFile  string
}

// Default is a configuration without a model and a mode.
func Default() Config {
	return Config{
		MemoryBytes: 256 << 20,
		AskWait:     50 * time.Millisecond,
		AskTimeout:  2 * time.Second,
		AskOver:     8 << 10,
		MaxAsks:     16,
	}
}

// Validate reports every setting that cannot work.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("tokens of %s: %w", c.Model, fmt.Errorf(format, args...)))
		}
	}
	check(c.Model != "", "a model has no name")
	switch c.Mode {
	case Engine, Learned, Tokenizer, Approximate:
	default:
		check(false, "mode %q is none of engine, learned, tokenizer, approximate", c.Mode)
	}
	check(c.MemoryBytes >= 1<<20, "memory of %d bytes; at least 1 MiB is needed", c.MemoryBytes)
	check(c.AskWait > 0 && c.AskTimeout >= c.AskWait, "asks wait %v and end after %v", c.AskWait, c.AskTimeout)
	check(c.AskOver >= 0 && c.MaxAsks > 0, "%d asks at once, for more than %d unknown bytes", c.MaxAsks, c.AskOver)
	check(c.Mode != Tokenizer || c.TokenizerFile != "", "mode tokenizer needs a tokenizer file")
	return errors.Join(errs...)
}

// bytesPerWait is how much text of a prompt AskWait is for. An engine reads a megabyte in some 0.3 s, and prefills it
// in several: without its tokens such a prompt is neither prefilled in pieces nor found in caches.
const bytesPerWait = 64 << 10

// waitFor is how long a request waits for the tokens of a prompt of so many bytes of text.
func (c *Config) waitFor(size int) time.Duration {
	return min(c.AskTimeout, max(c.AskWait, time.Duration(float64(c.AskWait)*float64(size)/bytesPerWait)))
}
