package health

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"hash/maphash"
	"log/slog"
	"slices"
	"strings"
	"unicode"

	"github.com/tandem-gateway/tandem/pools"
)

// maxModels and maxModelID bound what is known of one server, in names and in bytes of one:
// each is a label of metrics and looked at by every request.
const (
	maxModels  = 4096
	maxModelID = 512
)

// models asks the engine what it serves.
func (e engine) models(ctx context.Context, log *slog.Logger) ([]pools.Model, error) {
	body, err := e.get(ctx, modelsPath)
	if err != nil {
		return nil, err
	}
	return e.readModels(body, log)
}

const modelsPath = "/v1/models"

func (e engine) readModels(body []byte, log *slog.Logger) ([]pools.Model, error) {
	models, more, err := parseModels(body)
	if more > 0 && !e.server.Health().Up {
		log.Warn("the server lists models that are left out: more than are known of one, or names that are too long or cannot be printed", "known", len(models), "left_out", more)
	}
	return models, err
}

// modelList is what a server's model list said last. It says the same at nearly every probe, to the byte, and is not
// parsed again then.
type modelList struct {
	text   uint64 // a hash of it under modelSeed
	models []pools.Model
}

// maxSparePage is how long a list may be whose memory the next one is read into, in bytes.
const maxSparePage = 64 << 10

var modelSeed = maphash.MakeSeed()

// models asks the engine what it serves.
func (p *prober) models(ctx context.Context) ([]pools.Model, error) {
	if p.page.Reset(); p.page.Cap() > maxSparePage {
		p.page = bytes.Buffer{}
	}
	if err := p.read(ctx, modelsPath, &p.page); err != nil {
		return nil, err
	}
	text := maphash.Bytes(modelSeed, p.page.Bytes())
	if p.list.models != nil && text == p.list.text {
		return p.list.models, nil
	}
	models, err := p.readModels(p.page.Bytes(), p.log)
	p.list = modelList{text, models}
	return models, err
}

// printable is a text without what moves a terminal's cursor or hides: what engines say of themselves is printed there.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, text)
}

// parseModels reads an OpenAI model list, and returns how many names it leaves out.
func parseModels(body []byte) (models []pools.Model, more int, err error) {
	var list struct {
		Data []struct {
			ID          string  `json:"id"`
			Parent      string  `json:"parent"`
			Owner       string  `json:"owned_by"`
			MaxModelLen int     `json:"max_model_len"`
			Created     float64 `json:"created"` // with a fraction from Hugging Face's transformers serve
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, 0, errors.New("/v1/models is not a model list")
	}
	for _, m := range list.Data {
		switch {
		case m.ID == "":
		case len(models) == maxModels || len(m.ID) > maxModelID || len(m.Parent) > maxModelID || printable(m.ID+m.Parent) != m.ID+m.Parent:
			more++
		default:
			models = append(models, pools.Model{ID: m.ID, Parent: m.Parent, Owner: m.Owner, MaxModelLen: m.MaxModelLen, Created: createdAt(m.Created)})
		}
	}
	switch {
	case len(models) == 0 && more > 0:
		return nil, more, errors.New("/v1/models names only models whose names are too long or cannot be printed")
	case len(models) == 0:
		return nil, more, errors.New("/v1/models names no model")
	}
	return models, more, nil
}

// lastSecond is the end of the year 9999, in unix seconds: what is later no page can write as a time.
const lastSecond = 253_402_300_799

// createdAt is when an engine says that a model was created, in unix seconds; 0 where that is no time.
func createdAt(said float64) int64 {
	if said < 0 || said > lastSecond {
		return 0
	}
	return int64(said)
}

func modelIDs(models []pools.Model) []string {
	ids := make([]string, len(models))
	for i, m := range models {
		ids[i] = m.ID
	}
	return ids
}

// sameIDs reports whether two lists name the same models, in whatever order.
func sameIDs(a, b []pools.Model) bool {
	if slices.EqualFunc(a, b, func(a, b pools.Model) bool { return a.ID == b.ID }) { // as at nearly every probe
		return true
	}
	x, y := modelIDs(a), modelIDs(b)
	slices.Sort(x)
	slices.Sort(y)
	return slices.Equal(x, y)
}

// baseModels are those that are no adapters.
func baseModels(models []pools.Model) []pools.Model {
	return slices.DeleteFunc(slices.Clone(models), func(m pools.Model) bool { return m.Parent != "" })
}

// baseModel is the first model that is no adapter.
func baseModel(models []pools.Model) string {
	for _, m := range models {
		if m.Parent == "" {
			return m.ID
		}
	}
	return ""
}
