package gateway

import (
	"cmp"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/tandem-gateway/tandem/gateway/access"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/queue"
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

// anthropicModel is Anthropic's model (anthropic 2.14 types/model_info.py). A model has no other name
// to display, and what is served is active.
type anthropicModel struct {
	ID             string    `json:"id"`
	Type           string    `json:"type"`
	DisplayName    string    `json:"display_name"`
	CreatedAt      time.Time `json:"created_at"`
	Lifecycle      string    `json:"lifecycle"`
	MaxInputTokens int       `json:"max_input_tokens,omitempty"`
}

func describeToAnthropic(m pools.Model) anthropicModel {
	return anthropicModel{
		ID: m.ID, Type: "model", DisplayName: m.ID, CreatedAt: time.Unix(m.Created, 0).UTC(), Lifecycle: "active", MaxInputTokens: m.MaxModelLen,
	}
}

// anthropicList is all models on one page.
type anthropicList struct {
	Data    []anthropicModel `json:"data"`
	HasMore bool             `json:"has_more"`
	FirstID *string          `json:"first_id"`
	LastID  *string          `json:"last_id"`
}

func listToAnthropic(all []pools.Model) anthropicList {
	list := anthropicList{Data: []anthropicModel{}}
	for _, m := range all {
		list.Data = append(list.Data, describeToAnthropic(m))
	}
	if len(list.Data) > 0 {
		list.FirstID, list.LastID = &list.Data[0].ID, &list.Data[len(list.Data)-1].ID
	}
	return list
}

// models lists the union over the pools and what waits at zero, as far as the key may use
// it.
func (s *Server) models(c *fiber.Ctx) error {
	key, err := s.authenticate(c)
	if err != nil {
		return s.replyError(c, "models", err)
	}
	var all []pools.Model
	err = s.pd.Binder.AwaitFirstProbes(&s.life, waitingAs(key), func() bool {
		all = s.catalog()
		return len(all) > 0
	})
	if err != nil {
		return s.replyError(c, "models", err)
	}
	all = slices.DeleteFunc(all, func(m pools.Model) bool { return !key.May(m.ID) })
	if shapeOf(c) == api.Messages {
		return c.JSON(listToAnthropic(all))
	}
	list := struct {
		Object string        `json:"object"`
		Data   []modelObject `json:"data"`
	}{Object: "list", Data: []modelObject{}}
	for _, m := range all {
		list.Data = append(list.Data, describe(m))
	}
	return c.JSON(list)
}

// catalog is what clients may ask for, sorted by name. Engines may list many: each is looked
// at once.
func (s *Server) catalog() (all []pools.Model) {
	byName := make(map[string]pools.Model)
	for _, m := range s.fleet.Models() {
		byName[m.ID] = m
	}
	for _, name := range s.pd.ScaleFromZero.WillServeModels() {
		if _, served := byName[name]; !served {
			byName[name], _ = s.findModel(name)
		}
	}
	for _, a := range s.aliases() {
		delete(byName, a.Name) // an alias goes before a model of the name
		if m, offered := s.modelOf(a.Name); offered {
			byName[a.Name] = m
		}
	}
	return slices.SortedFunc(maps.Values(byName), func(a, b pools.Model) int { return cmp.Compare(a.ID, b.ID) })
}

// mostNamed is how many models the refusal of another one names.
const mostNamed = 8

// saysServed is a sentence of the models that a key may use, for one who has asked for another: most have mistyped it.
func (s *Server) saysServed(key *access.Key) string {
	var names []string
	for _, m := range s.catalog() {
		if !key.May(m.ID) {
			continue
		}
		if names = append(names, m.ID); len(names) > mostNamed {
			return " GET /v1/models lists those that are."
		}
	}
	if len(names) == 0 {
		return ""
	}
	return " Served are: " + strings.Join(names, ", ") + "."
}

// lacksModel reports whether an error is that no server is known to have the model.
func lacksModel(err error) bool {
	var none *pd.NoServerError
	return errors.Is(err, errUnknownModel) || errors.As(err, &none) && none.Unsaid
}

func (s *Server) model(c *fiber.Ctx) error {
	key, err := s.authenticate(c)
	if err != nil {
		return s.replyError(c, "models", err)
	}
	id, err := url.PathUnescape(c.Params("+"))
	if err != nil {
		return s.replyError(c, "models", errUnknownModel)
	}
	var m pools.Model
	served := false
	err = s.pd.Binder.AwaitFirstProbes(&s.life, waitingAs(key), func() bool {
		m, served = s.modelOf(id)
		return served
	})
	if err != nil {
		return s.replyError(c, "models", err)
	}
	switch {
	case !served || !key.May(m.ID):
		return s.replyError(c, "models", errUnknownModel)
	case shapeOf(c) == api.Messages:
		return c.JSON(describeToAnthropic(m))
	}
	return c.JSON(describe(m))
}

// waitingAs is how a request of a key that has no body waits.
func waitingAs(key *access.Key) queue.Request {
	return queue.Request{Class: key.Class, Tenant: key.Tenant}
}

// replyError answers an error of a small handler, which metrics count as the API's.
func (s *Server) replyError(c *fiber.Ctx, name string, err error) error {
	f := explain(err)
	s.metrics.requests.WithLabelValues(name, NoModel, f.outcome, overHTTP).Inc()
	s.metrics.countCause(NoModel, f)
	d := shapeOf(c)
	nameRequest(c, d, requestID(c))
	return f.send(c, d)
}
