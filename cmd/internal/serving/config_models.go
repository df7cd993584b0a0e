package serving

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/tandem-gateway/tandem/cmd/internal/nearest"
	"github.com/tandem-gateway/tandem/gateway"
	"github.com/tandem-gateway/tandem/pools"
)

// readModels reads the settings of models and their load that are lists of texts.
func (c *config) readModels() error {
	if err := c.gateway.read(); err != nil {
		return err
	}
	if err := c.pools.read(); err != nil {
		return err
	}
	if err := c.pd.read(c.access.Classes); err != nil {
		return err
	}
	if err := c.scaling.read(&c.pd.Config); err != nil {
		return err
	}
	for model, setting := range c.namedModels() {
		if slices.ContainsFunc(c.gateway.Aliases, func(a gateway.Alias) bool { return a.Name == model }) {
			return fmt.Errorf("%s: %s is an alias: name the models behind it", setting, model)
		}
		if strings.HasPrefix(model, "class:") {
			return fmt.Errorf("%s: %s: no model, and only an objective can be a class's", setting, model)
		}
	}
	return nil
}

// namedModels are the models that have settings of their own, with the first that names them.
func (c *config) namedModels() map[string]string {
	named := make(map[string]string)
	for _, of := range []struct {
		setting string
		models  iter.Seq[string]
	}{
		{"objective", maps.Keys(c.pd.Objective.Models.Models)},
		{"ttft-slo", maps.Keys(c.pd.TTFT.Models)},
		{"itl-slo", maps.Keys(c.pd.ITL.Models)},
		{"scale-itl", maps.Keys(c.scaling.ITL.Models)},
	} {
		for model := range of.models {
			named[model] = cmp.Or(named[model], of.setting)
		}
	}
	return named
}

// knowsModels reports settings for a model that no server has, of those that servers have and
// adapters that may be loaded. Where servers are found as they come, any may.
func (c *config) knowsModels(served []pools.Model) error {
	if c.findsServers() || c.discovery.kube.Enabled() {
		return nil
	}
	known := make(map[string]bool)
	for _, m := range served {
		known[m.ID] = true
	}
	for _, a := range c.pools.Adapters.Directory {
		known[a.Name] = true
	}
	for model, setting := range c.namedModels() {
		if !known[model] {
			models := slices.Sorted(maps.Keys(known))
			return fmt.Errorf("%s: no server has the model %s; there are %s%s", setting, model, strings.Join(models, ", "), nearest.Hint(model, models))
		}
	}
	return nil
}
