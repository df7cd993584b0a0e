package gateway

import (
	"slices"

	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
)

// impliedModel is the model that a request means that names none: on SGLang's own API that of the native servers,
// elsewhere the only one that its key may use, as vLLM (0.32, entrypoints/serve/engine/serving.py, _is_model_supported)
// and SGLang (0.5.23, entrypoints/openai/protocol.py, DEFAULT_MODEL_NAME) serve such a request with the model that they
// have. "" as long as no server has said which it has.
func (x *exchange) impliedModel() (string, error) {
	if x.dialect.Native {
		return x.server.nativeModel(), nil
	}
	models := x.server.baseModels()
	if len(models) == 0 {
		return "", nil
	}
	models = slices.DeleteFunc(models, func(model string) bool { return !x.key.May(model) })
	if len(models) != 1 {
		return "", errNoModel
	}
	return models[0], nil
}

// nativeModel is the model of the native servers.
func (s *Server) nativeModel() string {
	for _, server := range s.fleet.Servers() {
		if model := baseModel(server.Health().Models); server.Native && model != "" {
			return model
		}
	}
	return ""
}

// baseModels are the models that servers have or are started with for a request, each by the first of its names;
// adapters are none.
func (s *Server) baseModels() (models []string) {
	add := func(model string) {
		if model != "" && !slices.Contains(models, model) {
			models = append(models, model)
		}
	}
	for _, server := range s.fleet.Servers() {
		add(baseModel(server.Health().Models))
	}
	for _, model := range s.pd.ScaleFromZero.WillServeModels() {
		if base, comes := s.pd.ScaleFromZero.WillServe(model); comes {
			add(base)
		}
	}
	return models
}

// baseModel is the first of those that a server lists that is no adapter, "" where it lists none.
func baseModel(listed []pools.Model) string {
	at := slices.IndexFunc(listed, func(m pools.Model) bool { return m.Parent == "" })
	if at < 0 {
		return ""
	}
	return listed[at].ID
}

// nameModel makes the request one for a model.
func nameModel(req *pd.Request, model string) {
	req.Model, req.Body = model, req.Body.With(api.Edit{Key: "model", Value: quoted(model)})
}
