package main

import "github.com/tandem-gateway/tandem/pools"

// readPools reads the settings of pools that are written as text.
func (c *config) readPools() (err error) {
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
	return nil
}
