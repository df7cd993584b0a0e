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

// models lists the union over the pools.
func (s *Server) models(c *fiber.Ctx) error {
	list := struct {
		Object string        `json:"object"`
		Data   []modelObject `json:"data"`
	}{Object: "list", Data: []modelObject{}}
	for _, m := range s.fleet.Models() {
		list.Data = append(list.Data, describe(m))
	}
	return c.JSON(list)
}

func (s *Server) model(c *fiber.Ctx) error {
	id, err := url.PathUnescape(c.Params("id"))
	if m, served := s.fleet.Model(id); err == nil && served {
		return c.JSON(describe(m))
	}
	text := pd.ErrorText{Status: 404, Type: "invalid_request_error", Code: "model_not_found", Param: "model", Message: "The model does not exist or is not served here."}
	c.Set(fiber.HeaderContentType, fiber.MIMEApplicationJSON)
	return c.Status(fiber.StatusNotFound).Send(pd.Chat.ErrorBody(text))
}
