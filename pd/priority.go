package pd

import (
	"strconv"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
)

// keyAgeing is how much shorter a second of waiting makes a prompt look to an engine that
// schedules by priority, in seconds of prefill.
const keyAgeing = 0.05

// priority is the order of service as an engine's static key, lower first: when the
// request arrived, and its predicted prefill, of which a second weighs as much as 20 of
// waiting. So a short prompt passes long ones that came before, and nobody for ever. It is
// the wall clock's milliseconds, so that replicas agree as far as their clocks do.
func priority(arrived time.Time, prefill time.Duration) int64 {
	return arrived.Add(time.Duration(float64(prefill) / keyAgeing)).UnixMilli()
}

// rank writes the key into the request, for both legs. Clients' own never come here.
func (st *requestState) rank(b *binding) {
	key := priority(st.bind.arrived, b.chosen.Terms.Prefill)
	if connector.Of(b.decode.Server()).HigherPriorityFirst {
		key = -key
	}
	ranked := *st.req
	ranked.Body = st.req.Body.With(api.Set("priority", strconv.AppendInt(nil, key, 10)))
	st.req = &ranked
}
