package kvstate

import (
	"errors"
	"time"
)

// Config is how much an Index keeps and what it believes.
type Config struct {
	// Secret keys the block hashes. Replicas that share what they know need the same
	// one. Empty: keys that anyone can compute.
	Secret string
	// MaxBlocks bounds the index: blocks counted once for each server that holds them.
	// Beyond it those confirmed longest ago are forgotten. A block takes about 64 bytes
	// on up to 64 servers and 100 on 256.
	MaxBlocks int
	// GuessLife is how long a guess is believed after it was to come true; MaxGuesses bounds
	// them, in blocks for each model.
	GuessLife  time.Duration
	MaxGuesses int
	// StoreLife is how long a block is believed to be in a store outside the engines since it
	// was put or last found there: most stores never say what they forget.
	StoreLife time.Duration
	// CountGuesses makes matches count guesses as blocks on the GPU: what a server is still
	// computing, or was sent to compute.
	CountGuesses bool
}

// Default returns the configuration that a deployment should start from: up to about
// 1 GiB.
func Default() Config {
	return Config{
		MaxBlocks:  16 << 20,
		GuessLife:  5 * time.Second,
		MaxGuesses: 1 << 20,
		StoreLife:  10 * time.Minute,

		CountGuesses: true,
	}
}

// Validate reports what is wrong with the configuration, nil if nothing.
func (c Config) Validate() error {
	switch {
	case c.MaxBlocks < 1<<10:
		return errors.New("kv-max-blocks must be at least 1024")
	case c.GuessLife <= 0 || c.MaxGuesses <= 0:
		return errors.New("kv-guess-life and kv-max-guesses must be positive")
	case c.StoreLife < time.Second:
		return errors.New("kv-store-life must be at least a second")
	}
	return nil
}
