package gateway

import (
	"net/url"

	"github.com/gofiber/fiber/v2"

	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pools"
)

// modelObject is OpenAI's model, with vLLM's additions that clients use. Paths
// and permissions that engines add stay behind.
type modelObject struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"`
	OwnedBy     string `json:"owned_by"`
	Parent      string `json:"parent,omitempty"`
	MaxModelLen int    `json:"max_model_len,omitempty"`
}

func describe(m pools.Model) modelObject {
	return modelObject{ID: m.ID, Object: "model", Created: m.Created, OwnedBy: "tandem", Parent: m.Parent, MaxModelLen: m.MaxModelLen}
}

// models lists the union over the pools, as far as the key may use it.
func (s *Server) models(c *fiber.Ctx) error {
	key, err := s.whose(c)
	if err != nil {
		return s.decline(c, err)
	}
	list := struct {
		Object string        `json:"object"`
		Data   []modelObject `json:"data"`
	}{Object: "list", Data: []modelObject{}}
	for _, m := range s.fleet.Models() {
		if _, alias := s.alias(m.ID); key.May(m.ID) && !alias {
			list.Data = append(list.Data, describe(m))
		}
	}
	for _, a := range s.cfg.Aliases {
		if m, served := s.modelOf(a.Name); served && key.May(a.Name) {
			list.Data = append(list.Data, describe(m))
		}
	}
	return c.JSON(list)
}

func (s *Server) model(c *fiber.Ctx) error {
	key, err := s.whose(c)
	if err != nil {
		return s.decline(c, err)
	}
	id, err := url.PathUnescape(c.Params("id"))
	if m, served := s.modelOf(id); err == nil && served && key.May(m.ID) {
		return c.JSON(describe(m))
	}
	return s.decline(c, errUnknownModel)
}

// decline answers an error of a small handler.
func (s *Server) decline(c *fiber.Ctx, err error) error {
	f := explain(err)
	s.metrics.requests.WithLabelValues("models", "none", f.outcome).Inc()
	return f.send(c, pd.Chat)
}
