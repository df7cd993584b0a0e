package health

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"

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
	body, err := e.get(ctx, e.server.URL+"/v1/models")
	if err != nil {
		return nil, err
	}
	models, more, err := parseModels(body)
	if more > 0 && !e.server.Health().Up {
		log.Warn("the server lists more models than are known of one", "known", len(models), "left_out", more)
	}
	return models, err
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
		case len(models) == maxModels || len(m.ID) > maxModelID || len(m.Parent) > maxModelID:
			more++
		default:
			models = append(models, pools.Model{ID: m.ID, Parent: m.Parent, Owner: m.Owner, MaxModelLen: m.MaxModelLen, Created: int64(m.Created)})
		}
	}
	if len(models) == 0 {
		return nil, more, errors.New("/v1/models names no model")
	}
	return models, more, nil
}

func modelIDs(models []pools.Model) []string {
	ids := make([]string, len(models))
	for i, m := range models {
		ids[i] = m.ID
	}
	return ids
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
