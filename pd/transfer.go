package pd

import (
	"math/rand/v2"

	"github.com/google/uuid"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
)

// transfer is one attempt to bring a prompt's KV from a prefill to a decode server.
// What names it is minted for it alone: a name used twice would let a decode take the
// KV of a prefill that was given up.
type transfer struct {
	dialect  *api.Dialect
	body     api.Body // the client's
	from, to *pools.Server
	id       string        // the request id of both legs: vLLM matches them by it
	source   *pools.Server // from which prefill pulls the prompt's beginning; nil: from none
	// bootstrapRooms are random numbers, one for each answer, where engines meet.
	bootstrapRooms []int64
	engine         engineRank // that prefills, where the legs name it
	tokenIDs       bool       // prefill is asked for the prompt's token ids
	// sharesIDs: decode is given those ids.
	sharesIDs bool
}

// newTransfer names a transfer of a request with so many answers.
func newTransfer(d *api.Dialect, body api.Body, answers int, from, to *pools.Server) *transfer {
	t := &transfer{dialect: d, body: body, from: from, to: to, id: attemptID()}
	t.sharesIDs = sharesIDs(d, body, from, to)
	t.tokenIDs = t.sharesIDs
	if name := t.connector().name; name != nil {
		t.id = name(from, to)
	}
	for range max(1, answers) {
		t.bootstrapRooms = append(t.bootstrapRooms, rand.Int64())
	}
	return t
}

func (t *transfer) connector() *connector { return connectorOf(t.to) }

// legWith is a leg with the client's body and edits.
func (t *transfer) legWith(edits ...api.Edit) legRequest {
	return legRequest{body: t.body.With(edits...)}
}

// attemptID names an attempt to the engines. The client's own id never reaches them.
func attemptID() string { return "tandem-" + uuid.NewString() }
