package connector

import (
	"math/rand/v2"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/requestid"
	"github.com/tandem-gateway/tandem/pools"
)

// Transfer is one attempt to bring a prompt's KV from a prefill to a decode server.
// What names it is minted for it alone: a name used twice would let a decode take the
// KV of a prefill that was given up.
type Transfer struct {
	dialect  *api.Dialect
	body     api.Body // the client's
	From, To *pools.Server
	ID       string        // the request id of both legs: vLLM matches them by it
	Source   *pools.Server // from which prefill pulls the prompt's beginning; nil: from none
	Answer   *AnswerKV     // what prefill reads of an earlier answer's KV; nil: nothing
	TokenIDs bool          // prefill is asked for the prompt's token ids
	First    First         // what prefill's token is for; the zero value: nothing
	// HandoffKey is what TensorRT-LLM's generation servers take hand-offs by; "": none.
	HandoffKey string

	sharesIDs bool // decode is given those ids
	// bootstrapRooms are random numbers, one for each answer, where engines meet.
	bootstrapRooms []int64
	room           [1]int64   // for bootstrapRooms: mostly there is one answer
	meeting        []api.Edit // see bootstrap; nil: not made yet
	engine         engineRank // that prefills, where the legs name it
}

// Request is what a transfer needs of the request that it is for.
type Request struct {
	Dialect  *api.Dialect
	Body     api.Body
	Answers  int  // that it asks for; 0 is one
	OnlyText bool // its messages are known to be only text
}

// NewTransfer names a transfer.
func NewTransfer(req Request, from, to *pools.Server) *Transfer {
	t := &Transfer{dialect: req.Dialect, body: req.Body, From: from, To: to, ID: AttemptID()}
	t.sharesIDs = req.sharesIDs(from, to)
	t.TokenIDs = t.sharesIDs
	if requestID := t.Connector().requestID; requestID != nil {
		t.ID = requestID(from, to)
	}
	t.bootstrapRooms = t.room[:0]
	for range max(1, req.Answers) {
		t.bootstrapRooms = append(t.bootstrapRooms, rand.Int64())
	}
	return t
}

// Connector is that of both servers.
func (t *Transfer) Connector() *Connector { return Of(t.To) }

// AttemptID names an attempt to the engines. The client's own id never reaches them.
func AttemptID() string {
	id := requestid.New()
	return "tandem-" + string(id[:])
}
