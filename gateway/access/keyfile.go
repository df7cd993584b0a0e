package access

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
)

// keyFile is the file of keys. It holds no key, only the SHA-256 of each.
type keyFile struct {
	// Secret keys the cache salts of tenants, so that nobody can compute another's. The
	// same for all replicas; at least 32 characters.
	Secret string     `yaml:"secret"`
	Keys   []keyEntry `yaml:"keys"`
}

// keyEntry is one key in the file. Limits of 0 are none.
type keyEntry struct {
	SHA256 string   `yaml:"sha256"` // of the key, in hexadecimal
	Tenant string   `yaml:"tenant"`
	Class  string   `yaml:"class"`   // empty: the configured default
	MaySet []string `yaml:"may-set"` // priority, objectives, deadline, tenant
	Models []string `yaml:"models"`  // that it may ask; a name may end in *; empty: all

	Requests   int `yaml:"requests-per-minute"`
	Prompt     int `yaml:"prompt-tokens-per-minute"`
	Output     int `yaml:"output-tokens-per-minute"`
	Concurrent int `yaml:"concurrent-requests"`

	MaxSamples int           `yaml:"max-samples"`       // 0: the configured bound
	MaxOutput  int           `yaml:"max-output-tokens"` // bound that one request may set
	Deadline   time.Duration `yaml:"deadline"`          // 0: the configured one
	TTFT       time.Duration `yaml:"ttft-slo"`          // 0: the configured one of the model
	ITL        time.Duration `yaml:"itl-slo"`           // likewise
}

// leastSecret is the length of the shortest secret, in bytes.
const leastSecret = 32

// ReadKeys reads a file of keys. An error names the line and never a key.
func ReadKeys(content []byte, cfg Config) (*Keys, error) {
	var file keyFile
	if err := yaml.UnmarshalWithOptions(content, &file, yaml.Strict()); err != nil {
		// Without the source: somebody may have written a key where its hash belongs.
		return nil, errors.New(strings.TrimSpace(yaml.FormatError(err, false, false)))
	}
	if len(file.Secret) < leastSecret {
		return nil, fmt.Errorf("secret: want at least %d characters, such as those of openssl rand -hex 32", leastSecret)
	}
	keys := newKeys()
	for i, entry := range file.Keys {
		key, err := entry.key([]byte(file.Secret), cfg)
		if err != nil {
			return nil, fmt.Errorf("key %d: %w", i+1, err)
		}
		if !keys.add(key) {
			return nil, fmt.Errorf("key %d: its sha256 stands there twice", i+1)
		}
	}
	return keys, nil
}

func (e keyEntry) key(secret []byte, cfg Config) (*Key, error) {
	digest, err := hex.DecodeString(e.SHA256)
	if err != nil || len(digest) != sha256.Size {
		return nil, errors.New("sha256: want 64 hexadecimal digits, as \"tandem keys hash\" prints them")
	}
	if e.Tenant == "" || len(e.Tenant) > 128 || strings.ContainsFunc(e.Tenant, func(r rune) bool { return r < 0x20 }) {
		return nil, errors.New("tenant: want a name of 1 to 128 bytes")
	}
	if e.Class == "" {
		e.Class = cfg.Class
	}
	class := slices.Index(cfg.Classes, e.Class)
	if class < 0 {
		return nil, fmt.Errorf("class %q is none of %q", e.Class, cfg.Classes)
	}
	for name, n := range map[string]int{
		"requests-per-minute": e.Requests, "prompt-tokens-per-minute": e.Prompt, "output-tokens-per-minute": e.Output,
		"concurrent-requests": e.Concurrent, "max-samples": e.MaxSamples, "max-output-tokens": e.MaxOutput, "deadline": int(e.Deadline), "ttft-slo": int(e.TTFT), "itl-slo": int(e.ITL),
	} {
		if n < 0 {
			return nil, fmt.Errorf("%s must not be negative", name)
		}
	}
	key := &Key{
		ID: hex.EncodeToString(digest[:8]), Tenant: e.Tenant, Salt: salt(secret, e.Tenant), Class: class, models: e.Models,
		MaxSamples: cfg.MaxSamples, MaxOutput: e.MaxOutput, Deadline: cfg.Deadline, TTFT: e.TTFT, ITL: e.ITL,
		limits: Limits{Requests: e.Requests, Prompt: e.Prompt, Output: e.Output, Concurrent: e.Concurrent},
	}
	copy(key.digest[:], digest)
	if e.MaxSamples > 0 {
		key.MaxSamples = e.MaxSamples
	}
	if e.Deadline > 0 {
		key.Deadline = e.Deadline
	}
	for _, what := range e.MaySet {
		switch what {
		case "priority":
			key.MaySet.Priority = true
		case "objectives":
			key.MaySet.Objectives = true
		case "deadline":
			key.MaySet.Deadline = true
		case "tenant":
			key.MaySet.Tenant = true
		default:
			return nil, fmt.Errorf("may-set %q: want priority, objectives, deadline or tenant", what)
		}
	}
	return key, nil
}
