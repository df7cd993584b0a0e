package breaker

import (
	"errors"
	"time"
)

// Config sets when a server is ejected and for how long.
type Config struct {
	Consecutive int           // failures in a row that eject
	Ratio       float64       // share of failures that ejects, 0..1, over Window
	MinRequests int           // requests in Window before Ratio counts
	Window      time.Duration // rolling
	Ejection    time.Duration // the first; doubles with each that follows
	MaxEjection time.Duration
	Probe       time.Duration // how long a probe may take
}

// Default ejects after five failures in a row or half of twenty in ten
// seconds, for 1 s, 2 s, 4 s, ... up to a minute.
func Default() Config {
	return Config{
		Consecutive: 5,
		Ratio:       0.5,
		MinRequests: 20,
		Window:      10 * time.Second,
		Ejection:    time.Second,
		MaxEjection: time.Minute,
		Probe:       5 * time.Second,
	}
}

// Validate reports what is wrong with the configuration, nil if nothing.
func (c Config) Validate() error {
	switch {
	case c.Consecutive < 1 || c.Ratio <= 0 || c.Ratio > 1:
		return errors.New("breaker-failures must be at least 1, breaker-ratio above 0 and at most 1")
	case c.Ejection <= 0 || c.MaxEjection < c.Ejection || c.Probe <= 0:
		return errors.New("breaker-ejection, breaker-max-ejection and breaker-probe must be positive and in order")
	}
	return nil
}
