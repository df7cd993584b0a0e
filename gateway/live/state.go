package live

import (
	"time"

	"github.com/tandem-gateway/tandem/pd/cost"
)

// State is what the page shows: the answer of /ui/state, and the data of each event of /ui/events.
// Times are in milliseconds where their names end in _ms. It names servers, models and adapters, and
// nothing that a client sent: of requests only the sizes, and such IDs as no client writes by hand.
type State struct {
	At        time.Time  `json:"at"`
	Gateway   Gateway    `json:"gateway"`  // that answers
	Gateways  []Gateway  `json:"gateways"` // all of which the rest is, this one and those that share its Redis, by name
	Servers   []Server   `json:"servers"`  // prefill first, then by ID
	Links     Links      `json:"links"`
	Models    []Model    `json:"models"`  // that were asked for lately, by name
	History   History    `json:"history"` // of one model, or of all
	Scaling   []Pool     `json:"scaling"`
	Decisions []Decision `json:"decisions"` // the newest first
}

// Gateway is one replica.
type Gateway struct {
	Version string `json:"version"`
	Replica string `json:"replica,omitempty"` // its name among those that share a Redis
	Silent  string `json:"silent,omitempty"`  // why it did not answer: then nothing here is of it, and what follows is not known
	Ready   bool   `json:"ready"`
	Why     string `json:"why,omitempty"` // it is not ready
	// Apart: its Redis does not answer, so that it knows of others what it knew before.
	Apart    bool  `json:"apart,omitempty"`
	Waiting  int   `json:"waiting"`   // requests in its queue
	InFlight int   `json:"in_flight"` // requests that have their servers
	Lately   Point `json:"lately"`    // its last minute
	// Since is when it began, by its own clock; zero of an earlier version.
	Since time.Time `json:"since,omitzero"`
}

// Server is one server, as the gateways know it. What is absent is not known.
type Server struct {
	ID        string    `json:"id"`
	Role      string    `json:"role"`  // prefill, decode, both
	State     string    `json:"state"` // alive, unresponsive, down; where gateways differ the worst
	Reason    string    `json:"reason,omitempty"`
	Draining  bool      `json:"draining,omitempty"`
	Host      string    `json:"host,omitempty"`
	Rack      string    `json:"rack,omitempty"`
	Zone      string    `json:"zone,omitempty"`
	Connector string    `json:"connector,omitempty"`
	Models    []string  `json:"models"`
	Adapters  []Adapter `json:"adapters,omitempty"`
	Prefill   *Leg      `json:"prefill,omitempty"` // where it serves the leg
	Decode    *Leg      `json:"decode,omitempty"`
	KVUsed    *float64  `json:"kv_used,omitempty"`   // 0..1, as the engine reports
	KVTokens  *float64  `json:"kv_tokens,omitempty"` // capacity
	Running   *float64  `json:"running,omitempty"`   // requests in the engine's batch
	Waiting   *float64  `json:"waiting,omitempty"`   // in the engine's queue
	Views     []View    `json:"views,omitempty"`     // of each gateway, where they differ
}

// View is how one gateway sees a server.
type View struct {
	Gateway string `json:"gateway"`
	State   string `json:"state"`   // alive, unresponsive, down
	Breaker string `json:"breaker"` // the worst of its legs'
}

// Leg is what a server has under way of one leg.
type Leg struct {
	Breaker  string  `json:"breaker"`          // closed, half-open, open; where gateways differ the worst
	Reason   string  `json:"reason,omitempty"` // what the server failed with last, while the breaker is not closed
	Requests int     `json:"requests"`         // of all gateways
	Own      int     `json:"own"`              // of the gateways that answered
	Tokens   int     `json:"tokens"`           // of all gateways
	QueueMs  float64 `json:"queue_ms"`         // work that was sent to it and is not done
}

// Adapter is a LoRA adapter that a server has loaded.
type Adapter struct {
	Name    string `json:"name"`
	Running bool   `json:"running,omitempty"` // it is in the batch
}

// Links are what transfers of KV take.
type Links struct {
	Classes []LinkClass `json:"classes"` // nearest first
	Pairs   []LinkPair  `json:"pairs"`   // that moved KV lately, those taken to be slowest first
}

// LinkClass is a class of links: of servers that share a host, a rack, a zone, or none.
type LinkClass struct {
	Distance    string  `json:"distance"`
	LatencyMs   float64 `json:"latency_ms"`
	GBPerSecond float64 `json:"gb_per_second"`
}

// LinkPair is the link between two servers, which are named by their places in State.Servers.
type LinkPair struct {
	Prefill int `json:"p"`
	Decode  int `json:"d"`
	Link
}

// Link is what is known of the link between two servers.
type Link struct {
	Distance  string     `json:"distance,omitempty"` // absent where no transfer was seen
	Transfers uint64     `json:"transfers"`          // that ended, of all gateways
	Moving    int        `json:"moving,omitempty"`   // under way
	Measured  float64    `json:"measured,omitempty"` // times the time of its class that they took, on the geometric mean
	Slower    float64    `json:"slower"`             // times slower than its class that choices take it to be; where gateways differ the most
	Blamed    string     `json:"blamed,omitempty"`   // pair, prefill or decode
	FailedAt  *time.Time `json:"failed_at,omitempty"`
}

// LinkList is the answer of /debug/links: the links by the names of their servers.
type LinkList struct {
	Classes []LinkClass       `json:"classes"`          // nearest first
	Pairs   []NamedLink       `json:"pairs"`            // that moved KV lately, those taken to be slowest first
	Silent  map[string]string `json:"silent,omitempty"` // gateways that did not answer, and why
}

// NamedLink is the link between two servers.
type NamedLink struct {
	Prefill string `json:"prefill"`
	Decode  string `json:"decode"`
	Link
}

// Model is what requests for a model took in the last minute.
type Model struct {
	ID string `json:"id"`
	Point
}

// History is what requests took, in steps.
type History struct {
	Model       string  `json:"model,omitempty"` // "": all
	StepSeconds float64 `json:"step_s"`
	Points      []Point `json:"points"` // oldest first; the last one is not over
	Lately      Point   `json:"lately"` // the last minute
}

// Point is what requests took in one step of the history, or in several together.
type Point struct {
	Start   int64   `json:"t"`                 // unix seconds
	Seconds float64 `json:"seconds,omitempty"` // that were counted, of the last minute: fewer than 60 where the gateways are younger, or its last step is not over
	First   int     `json:"first"`
	Answers int     `json:"answers"`
	Failed  int     `json:"failed"` // before their first token
	Parts   Parts   `json:"parts"`
	TTFT50  float64 `json:"ttft_p50_ms"`
	TTFT99  float64 `json:"ttft_p99_ms"`
	Gaps    int     `json:"gaps"`
	ITL50   float64 `json:"itl_p50_ms"`
	ITL99   float64 `json:"itl_p99_ms"`
	Output  int64   `json:"output_tokens"`
	Prompt  int64   `json:"prompt_tokens"`
	// Cached shares are of the prompt tokens of engines that report what was cached; absent where
	// there were none.
	Cached    *float64 `json:"cached,omitempty"`           // as the engines report it
	Predicted *float64 `json:"cached_predicted,omitempty"` // as it was believed when servers were chosen
}

// Parts are what the time to the first token went to, on the mean, in milliseconds.
type Parts struct {
	Wait       float64 `json:"wait_ms"`
	Retry      float64 `json:"retry_ms"` // to choose, and for attempts that failed
	Prefill    float64 `json:"prefill_ms"`
	Transfer   float64 `json:"transfer_ms"`
	Together   float64 `json:"together_ms"`   // prefill and transfer, where no engine tells them apart
	Aggregated float64 `json:"aggregated_ms"` // decode that computed the prompt itself
}

// Pool is what is wanted of the servers of a model in a role.
type Pool struct {
	Model   string    `json:"model"`
	Role    string    `json:"role"`
	Variant string    `json:"variant,omitempty"`
	Wanted  *int      `json:"wanted,omitempty"` // absent while it is not known
	Ready   int       `json:"ready"`
	Pending int       `json:"pending"` // asked for, and not there yet
	Waiting int       `json:"waiting"` // requests, because there is no server
	Reason  string    `json:"reason"`
	Stale   bool      `json:"stale,omitempty"`
	At      time.Time `json:"at"`
}

// Decision is why the last attempt of a request went where it did.
type Decision struct {
	ID           string         `json:"id,omitempty"`      // absent where it may be the client's own words
	Gateway      string         `json:"gateway,omitempty"` // that decided
	At           time.Time      `json:"at"`
	Model        string         `json:"model"`
	API          string         `json:"api"`
	Outcome      string         `json:"outcome"` // served, picked, retried, broken, failed
	Attempts     int            `json:"attempts"`
	PromptTokens int            `json:"prompt_tokens"` // predicted
	OutputTokens int            `json:"output_tokens"` // predicted
	WaitedMs     float64        `json:"waited_ms"`
	Alone        string         `json:"alone,omitempty"` // why decode runs alone
	Chosen       cost.Explained `json:"chosen"`
	Measured     Measured       `json:"measured"`
}

// Measured is what an attempt took; what is absent was not seen, or has not ended.
type Measured struct {
	Prefill      *float64 `json:"prefill_ms,omitempty"`     // queue and prefill
	Transfer     *float64 `json:"transfer_ms,omitempty"`    // transfer, KV room and a step
	First        *float64 `json:"first_token_ms,omitempty"` // since the choice
	Whole        *float64 `json:"whole_ms,omitempty"`
	PromptTokens *int     `json:"prompt_tokens,omitempty"`
	CachedTokens *int     `json:"cached_tokens,omitempty"`
	OutputTokens *int     `json:"output_tokens,omitempty"`
}
