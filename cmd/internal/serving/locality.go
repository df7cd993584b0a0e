package serving

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pools"
)

// localityConfig is what is known of KV, and how.
type localityConfig struct {
	index      kvstate.Config
	asking     tokens.Config // of each model, less what is the model's own
	secretFile string
	eventsPort int
	replayPort int
	modes      []string // mode, or model=mode
	tokenizers []string // model=file
	templates  []string // model=file
	snapshots  time.Duration
}

func defaultLocality() localityConfig {
	return localityConfig{
		index: kvstate.Default(), asking: tokens.Default(), modes: []string{string(tokens.Engine)}, snapshots: 15 * time.Second,
	}
}

func (c *localityConfig) bind(fs *pflag.FlagSet) {
	fs.IntVar(&c.eventsPort, "events-port", c.eventsPort,
		"`port` of the engines' KV events (ZMQ), plus the rank; 0: only those named in the file")
	fs.IntVar(&c.replayPort, "replay-port", c.replayPort, "`port` that replays KV events, plus the rank; 0: none")
	fs.StringSliceVar(&c.modes, "tokens", c.modes,
		"how prompts are turned into tokens: engine, learned, tokenizer, approximate or off; `modes`, for single models as model=mode")
	fs.StringSliceVar(&c.tokenizers, "tokenizer", c.tokenizers, "Hugging Face tokenizer.json of a model, `model=file`")
	fs.StringSliceVar(&c.templates, "chat-template", c.templates, "Jinja chat template of a model, `model=file`")
	fs.IntVar(&c.index.MaxBlocks, "kv-max-blocks", c.index.MaxBlocks,
		"KV blocks that are remembered, each once for each server that holds it; about 64 bytes a block")
	fs.DurationVar(&c.index.StoreLife, "kv-store-life", c.index.StoreLife, "how long a block is believed to be in a KV store outside the engines since it was put or last found there: such stores do not say what they forget")
	fs.BoolVar(&c.index.CountGuesses, "kv-count-guesses", c.index.CountGuesses, "count blocks that a server was sent to compute as held there: requests that begin alike go where the first one is computed")
	fs.DurationVar(&c.index.GuessLife, "kv-guess-life", c.index.GuessLife, "time that such a guess is believed after the predicted end of the computation")
	fs.DurationVar(&c.snapshots, "kv-snapshot", c.snapshots,
		"time between two snapshots of what is known, kept in Redis for replicas that start")
	fs.StringVar(&c.secretFile, "kv-secret-file", c.secretFile, "`file` with a secret that keys the block hashes; the same for all replicas, which else do not tell each other what servers hold; read again when it changes: what servers hold is then learned anew from their KV events")
}

func (c *localityConfig) validate() error {
	for _, m := range c.modes {
		if _, err := parseMode(m); err != nil {
			return err
		}
	}
	for _, pair := range append(append([]string(nil), c.tokenizers...), c.templates...) {
		if model, file, ok := strings.Cut(pair, "="); !ok || model == "" || file == "" {
			return fmt.Errorf("tokenizer and chat-template %q: want model=file", pair)
		}
	}
	if c.eventsPort < 0 || c.eventsPort > 65535 || c.replayPort < 0 || c.replayPort > 65535 {
		return errors.New("events-port and replay-port must be ports, or 0")
	}
	if c.snapshots <= 0 {
		return errors.New("kv-snapshot must be positive")
	}
	return c.index.Validate()
}

const modeOff = "off"

func parseMode(text string) (tokens.Mode, error) {
	if _, mode, ok := strings.Cut(text, "="); ok {
		text = mode
	}
	switch m := tokens.Mode(text); m {
	case tokens.Engine, tokens.Learned, tokens.Tokenizer, tokens.Approximate, modeOff:
		return m, nil
	}
	return "", fmt.Errorf("tokens %q: want engine, learned, tokenizer, approximate or off", text)
}

// mode is how a model's prompts are turned into tokens: its own setting, or that of
// all.
func (c *localityConfig) mode(model string) tokens.Mode {
	mode := tokens.Mode(modeOff)
	for _, text := range c.modes {
		name, _, single := strings.Cut(text, "=")
		if m, err := parseMode(text); err == nil && (!single || name == model) {
			mode = m
			if single {
				return m
			}
		}
	}
	return mode
}

// tokensOf is how the tokens of a model's prompts are known, as far as the configuration says it.
func (c *localityConfig) tokensOf(model string) tokens.Config {
	cfg := c.asking
	cfg.Model, cfg.Mode = model, c.mode(model)
	cfg.TokenizerFile, cfg.TemplateFile = fileOf(c.tokenizers, model), fileOf(c.templates, model)
	return cfg
}

// namedModels are the models that have settings of their own, with the first that names them.
func (c *localityConfig) namedModels() map[string]string {
	named := make(map[string]string)
	for _, of := range []struct {
		setting string
		texts   []string
	}{{"tokens", c.modes}, {"tokenizer", c.tokenizers}, {"chat-template", c.templates}} {
		for _, text := range of.texts {
			if model, _, single := strings.Cut(text, "="); single {
				named[model] = cmp.Or(named[model], of.setting)
			}
		}
	}
	return named
}

// checkTokenizers reads the tokenizers and chat templates of models whose servers publish KV events, which serve reads
// when the first request for the model comes, and those that are named. It warns of files that no mode uses.
func (c *localityConfig) checkTokenizers(published []pools.Model) (faults []error, warnings []string) {
	models := make(map[string]bool)
	for _, m := range published {
		if m.Parent == "" {
			models[m.ID] = true
		}
	}
	for _, pair := range slices.Concat(c.tokenizers, c.templates) {
		model, _, _ := strings.Cut(pair, "=")
		models[model] = true
	}
	for _, model := range slices.Sorted(maps.Keys(models)) {
		cfg := c.tokensOf(model)
		switch {
		case cfg.Mode == tokens.Tokenizer:
			source, err := tokens.New(cfg, nil, nil)
			if err != nil {
				faults = append(faults, err)
				continue
			}
			source.Close()
		case cfg.TokenizerFile+cfg.TemplateFile != "":
			warnings = append(warnings, fmt.Sprintf("model %s: its tokenizer and chat-template are not used, as tokens is %s for it: set tokens to %s=%s",
				model, cfg.Mode, model, tokens.Tokenizer))
		}
	}
	return faults, warnings
}

// withEvents gives a server the addresses that the ports say, where the file has none.
func (c *localityConfig) withEvents(s pools.Spec) pools.Spec {
	if s.EventBind {
		return s
	}
	if s.Events == "" {
		s.Events = s.PublishedAt(c.eventsPort)
	}
	if s.Replay == "" {
		s.Replay = s.PublishedAt(c.replayPort)
	}
	return s
}

// replaceKVSecret has the hashes of blocks keyed by what the file of their secret holds now. What is known of engines is
// learned anew, as at a start: it cannot be hashed anew without its tokens.
func (n *Node) replaceKVSecret() error {
	if err := n.secrets.kv.readAgain(); err != nil {
		return err
	}
	n.locality.Index.ReplaceSecret(n.secrets.kv.current())
	return nil
}

// locate makes what knows which server holds which KV.
func (n *Node) locate(transport http.RoundTripper, reg prometheus.Registerer) error {
	n.cfg.kv.index.Secret = n.secrets.kv.current()
	index, err := kvstate.New(n.cfg.kv.index)
	if err != nil {
		return err
	}
	sources := &tokenSources{cfg: n.cfg.kv, fleet: n.fleet, transport: transport, metrics: tokens.NewMetrics(reg), log: n.log}
	n.locality = pd.NewLocality(index, sources.open)
	return nil
}

// tokenSources opens the token source of a model when it is first asked for.
type tokenSources struct {
	cfg       localityConfig
	fleet     *pools.Fleet
	transport http.RoundTripper
	metrics   *tokens.Metrics
	log       *slog.Logger
}

// open returns the source of a base model, or the tokens.Reason why it has none for now.
func (t *tokenSources) open(model string) (s *tokens.Source, err error) {
	defer func() { // no request stands behind this call
		if p := recover(); p != nil {
			t.log.Error("reading a tokenizer panicked", "model", model, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			s, err = nil, fmt.Errorf("tokens of %s: %v", model, p)
		}
	}()
	mode := t.cfg.mode(model)
	if mode == modeOff {
		return nil, tokens.Off
	}
	if mode != tokens.Approximate && !t.publishes(model) {
		return nil, tokens.NoEvents
	}
	cfg := t.cfg.tokensOf(model)
	cfg.Engine = func() string { return t.engine(model) }
	s, err = tokens.New(cfg, t.ask(model), t.metrics)
	if err != nil {
		t.log.Error("prompts stay unknown, requests go by load", "model", model, "error", err.Error())
		return nil, err
	}
	t.log.Info("prompts are known", "model", model, "tokens", string(mode))
	return s, nil
}

// engine is the name of the engine that serves a model, "" while none has told it.
func (t *tokenSources) engine(model string) string {
	for _, s := range t.fleet.Servers() {
		if h := s.Health(); h.Up && h.Serves(model) {
			return s.Identity().Engine
		}
	}
	return ""
}

// publishes reports whether any server of the model publishes KV events: else the
// tokens would match nothing.
func (t *tokenSources) publishes(model string) bool {
	for _, s := range t.fleet.Servers() {
		if s.Published().Events != "" && s.Health().Serves(model) {
			return true
		}
	}
	return false
}

func fileOf(pairs []string, model string) string {
	for _, pair := range pairs {
		if name, file, _ := strings.Cut(pair, "="); name == model {
			return file
		}
	}
	return ""
}

// maxTokensAnswer bounds what an engine may answer to a question for tokens, in bytes.
const maxTokensAnswer = 64 << 20

// ask posts to any server of the model that is up.
func (t *tokenSources) ask(model string) tokens.Ask {
	return func(ctx context.Context, path string, body []byte) ([]byte, error) {
		var up []*pools.Server
		for _, s := range t.fleet.Servers() {
			if h := s.Health(); h.Up && h.Serves(model) {
				up = append(up, s)
			}
		}
		if len(up) == 0 {
			return nil, errors.New("no server of the model is up")
		}
		server := up[rand.IntN(len(up))]
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+path, bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := t.transport.RoundTrip(req)
		if err != nil {
			return nil, err
		}
		defer func() { _ = resp.Body.Close() }()
		answer, err := io.ReadAll(io.LimitReader(resp.Body, maxTokensAnswer))
		if err != nil {
			return nil, err
		}
		switch status := resp.StatusCode; {
		case status == http.StatusOK:
			return answer, nil
		case notServed(status):
			return nil, fmt.Errorf("%s: %w", path, tokens.ErrNotServed)
		case status >= 400 && status < 500:
			return nil, fmt.Errorf("%s: %w", path, tokens.ErrRefused)
		}
		return nil, fmt.Errorf("%s answered %d", path, resp.StatusCode)
	}
}

// notServed reports a status by which an engine says that it has no such path. vLLM 0.32
// answers 403 for the render paths unless it was started with --enable-scale-out
// (vllm/entrypoints/scale_out/factories.py).
func notServed(status int) bool {
	switch status {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented, http.StatusForbidden:
		return true
	}
	return false
}
