package kvstate

import (
	"errors"
	"fmt"
	"strconv"
)

// SourceID names what publishes: a server, and the data-parallel rank behind its
// address. A server that is one rank of an address ("host:port/dp1") has rank 0.
type SourceID struct {
	Server string
	Rank   int
}

func (id SourceID) rank() string { return strconv.Itoa(id.Rank) }

func (id SourceID) String() string {
	if id.Rank == 0 {
		return id.Server
	}
	return fmt.Sprintf("%s rank %d", id.Server, id.Rank)
}

// Spec is what is known of a source beforehand.
type Spec struct {
	SourceID
	Model string // base model that the server serves
	// Store names the KV store outside the engines that the server puts blocks into and loads
	// them from, such as Mooncake's: what is there counts for all servers of that name. Empty:
	// what its events say of one counts for it alone.
	Store string
	// Replays says that missed batches can be asked for.
	Replays bool
	// BlockTokens gives the server a place in the index before its first event, with
	// blocks of this size. 0: taken from the first event.
	BlockTokens int
}

// Validate reports what is wrong with the spec, nil if nothing.
func (s Spec) Validate() error {
	switch {
	case s.Server == "":
		return errors.New("KV source without a server")
	case s.Model == "":
		return fmt.Errorf("KV source %s without a model", s.SourceID)
	case s.Rank < 0 || s.BlockTokens < 0:
		return fmt.Errorf("KV source %s: rank %d, blocks of %d tokens", s.SourceID, s.Rank, s.BlockTokens)
	}
	return nil
}
