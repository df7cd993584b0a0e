package access

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
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

	MaxSamples int `yaml:"max-samples"`       // 0: the configured bound
	MaxOutput  int `yaml:"max-output-tokens"` // bound that one request may set

	// Texts, of which YAML's reader would not say what is wrong. Empty is as 0s.
	Deadline string `yaml:"deadline"` // 0s: the configured one
	TTFT     string `yaml:"ttft-slo"` // 0s: the configured one of the model
	ITL      string `yaml:"itl-slo"`  // likewise
}

// leastSecret is the length of the shortest secret, in bytes.
const leastSecret = 32

// ReadKeys reads a file of keys. An error names the line and never a key.
func ReadKeys(content []byte, cfg Config) (*Keys, error) {
	var file keyFile
	if err := yaml.UnmarshalWithOptions(content, &file, yaml.Strict()); err != nil {
		return nil, fileError(err)
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

// fileError is what the YAML reader found wrong, with its line and setting. It holds neither the source nor a value:
// somebody may have written a key where it does not belong.
func fileError(err error) error {
	var fault yaml.Error
	if !errors.As(err, &fault) || fault.GetToken() == nil {
		return errors.New(strings.TrimSpace(yaml.FormatError(err, false, false)))
	}
	at, text := fault.GetToken(), fault.GetMessage()
	var wrong *yaml.TypeError
	var unknown *yaml.UnknownFieldError
	var twice *yaml.DuplicateKeyError
	var large *yaml.OverflowError
	var shape *yaml.UnexpectedNodeTypeError
	switch {
	case errors.As(err, &unknown):
		return &UnknownFieldError{Line: at.Position.Line, Field: at.Value, Known: slices.Concat(fieldNames[keyFile](), fieldNames[keyEntry]())}
	case errors.As(err, &twice), strings.HasPrefix(text, "mapping key "): // a fault of the syntax, to its parser
		return fmt.Errorf("line %d: a field appears twice", at.Position.Line)
	case errors.As(err, &large):
		text = "the number is too large"
	case errors.As(err, &shape) && shape.Actual == ast.SequenceType && at.Prev == nil:
		text = `want "secret: ..." and "keys:" above the entries`
	case errors.As(err, &wrong) && wrong.DstType != nil:
		switch wrong.DstType.Kind() {
		case reflect.Int:
			text = "want a whole number"
		case reflect.String:
			text = "want a single value"
		}
	}
	if colon := at.Prev; colon != nil && colon.Type == token.MappingValueType && colon.Prev != nil {
		text = colon.Prev.Value + ": " + text
	}
	return fmt.Errorf("line %d: %s", at.Position.Line, text)
}

// UnknownFieldError is a field that the file of keys has and that is none of its fields.
type UnknownFieldError struct {
	Line int
	// Field is its name as it stands in the file. The error does not say it: it may be a key in a place where it
	// does not belong. What resembles a field that is known is a slip of the pen, and can be shown.
	Field string
	Known []string // the fields that there are
}

func (e *UnknownFieldError) Error() string {
	return fmt.Sprintf("line %d: unknown field; there are %s", e.Line, strings.Join(e.Known, ", "))
}

// fieldNames are the names in the file of the fields of a struct.
func fieldNames[T any]() (names []string) {
	for _, field := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		names = append(names, field.Tag.Get("yaml"))
	}
	return names
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
	var deadline, ttft, itl time.Duration
	for _, of := range []struct {
		name, text string
		into       *time.Duration
	}{{"deadline", e.Deadline, &deadline}, {"ttft-slo", e.TTFT, &ttft}, {"itl-slo", e.ITL, &itl}} {
		if of.text == "" {
			continue
		}
		if *of.into, err = time.ParseDuration(of.text); err != nil {
			return nil, fmt.Errorf("%s: want a time with its unit, such as 30s", of.name)
		}
	}
	for name, n := range map[string]int{
		"requests-per-minute": e.Requests, "prompt-tokens-per-minute": e.Prompt, "output-tokens-per-minute": e.Output,
		"concurrent-requests": e.Concurrent, "max-samples": e.MaxSamples, "max-output-tokens": e.MaxOutput, "deadline": int(deadline), "ttft-slo": int(ttft), "itl-slo": int(itl),
	} {
		if n < 0 {
			return nil, fmt.Errorf("%s must not be negative", name)
		}
	}
	key := &Key{
		ID: hex.EncodeToString(digest[:8]), Tenant: e.Tenant, Salt: salt(secret, e.Tenant), Class: class, models: e.Models,
		MaxSamples: cfg.MaxSamples, MaxOutput: e.MaxOutput, Deadline: cfg.Deadline, TTFT: ttft, ITL: itl,
		limits: Limits{Requests: e.Requests, Prompt: e.Prompt, Output: e.Output, Concurrent: e.Concurrent},
	}
	copy(key.digest[:], digest)
	if e.MaxSamples > 0 {
		key.MaxSamples = e.MaxSamples
	}
	if deadline > 0 {
		key.Deadline = deadline
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
