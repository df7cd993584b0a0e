// Package sample has a fault of each kind that its test notices, and one that it does not.
package sample

import (
	"errors"
	"sync"
)

type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) add() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
}

func clamp(x, most int) int {
	if x > most {
		return most
	}
	return x
}

func next(x int) int { return x + 1 }

func both(a, b int) (int, int) { return a, b }

func isSmall(x int) bool { return x < 10 }

func positive(x int) error {
	if x <= 0 {
		return errors.New("not positive")
	}
	return nil
}

func twice(f func()) {
	defer f()
	f()
}

// Nobody is called by no test.
func Nobody(x int) bool { return x != 3 }
