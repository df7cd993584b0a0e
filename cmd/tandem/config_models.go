package main

import (
	"fmt"

	"github.com/tandem-gateway/tandem/autoscale/mix"
	"github.com/tandem-gateway/tandem/gateway"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pools"
)

// readModels reads the settings of models and their load that are lists of texts.
func (c *config) readModels() (err error) {
	c.gateway.Aliases = nil
	for _, text := range c.aliases {
		a, err := gateway.ParseAlias(text)
		if err != nil {
			return err
		}
		c.gateway.Aliases = append(c.gateway.Aliases, a)
	}
	if c.pools.LoadTables, err = pools.LoadTables(c.loadMetrics); err != nil {
		return err
	}
	c.pools.Adapters.Directory = nil
	for _, text := range c.adapters {
		a, err := pools.ParseAdapter(text)
		if err != nil {
			return err
		}
		c.pools.Adapters.Directory = append(c.pools.Adapters.Directory, a)
	}
	c.stock = mix.Stock{TTFT: c.pd.TTFT}
	for _, text := range c.hardware {
		v, err := parseHardware(text)
		if err != nil {
			return fmt.Errorf("hardware %q: %w", text, err)
		}
		c.stock.Variants = append(c.stock.Variants, *v)
	}
	c.pd.Objective, err = pd.ParseObjectives(c.objectives, c.door.Classes)
	return err
}
