package e2e

import (
	"net/http"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

const readyWithin = process.ReadyWithin

// client is the tests' own: the longest streams end well before, and what never answers fails one test.
var client = &http.Client{Timeout: 5 * time.Minute}

// start runs a program from the repository, bin being relative to its root.
func start(t *testing.T, name, bin string, args ...string) *process.Process {
	t.Helper()
	return process.Start(t, nil, name, bin, args...)
}

func waitFor(t *testing.T, p *process.Process, what string, within time.Duration, done func() error) {
	t.Helper()
	process.WaitFor(t, p, what, within, done)
}

func answers(url string) func() error { return process.Answers(url) }

func freeAddress(t *testing.T) string { return process.FreeAddress(t) }

func getJSON(url string, into any) error { return process.JSON(url, into) }

func portOf(t *testing.T, address string) string { return process.Port(t, address) }

// Each process of a test gets ports of its own, though it may not listen on them yet when others get theirs.
func TestFreeAddress_NoneIsGivenTwice(t *testing.T) {
	given := make(map[string]bool)
	for range 2000 {
		address := freeAddress(t)
		if given[address] {
			t.Fatalf("%s is given twice", address)
		}
		given[address] = true
	}
}
