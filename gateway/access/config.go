// Package access is the gateway's access control: whose key a request carries, what the
// key may ask for, and how much of it. It knows nothing of HTTP servers and of engines;
// gateway asks it for each request, and cmd gives it the file of keys.
//
// Keys live in a file that holds only their SHA-256. Each belongs to a tenant, is of a
// priority class and has limits; what it has used is counted in token buckets, and
// shared with other replicas without a request ever waiting for it.
package access

import (
	"fmt"
	"slices"
	"time"
)

// Config is what holds for all clients, keys or none.
type Config struct {
	Classes      []string      // of priority, the first is served first
	Class        string        // of keys that name none, and of all clients where there are no keys
	Deadline     time.Duration // for the first content of requests that name none; 0: none
	MaxSamples   int           // answers that one request may ask for: prompts times n, or best_of
	TrustHeaders bool          // where there are no keys: all clients may set priority, objectives, deadline and tenant
}

// DefaultConfig has one class above the ordinary and one below it.
func DefaultConfig() Config {
	return Config{Classes: []string{"interactive", "standard", "batch"}, Class: "standard", MaxSamples: 128}
}

// Validate reports what is wrong with the configuration, nil if nothing.
func (c Config) Validate() error {
	for i, name := range c.Classes {
		if name == "" || len(name) > 64 || slices.Contains(c.Classes[:i], name) {
			return fmt.Errorf("classes %q: want names of at most 64 bytes, each once", c.Classes)
		}
	}
	if !slices.Contains(c.Classes, c.Class) {
		return fmt.Errorf("default-class %q is none of the classes %q", c.Class, c.Classes)
	}
	if c.Deadline < 0 || c.MaxSamples < 1 {
		return fmt.Errorf("deadline must not be negative, max-samples at least 1")
	}
	return nil
}
