package gateway

import (
	"time"

	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pools"
)

// taken makes a request one that the model's servers take, in a pair or by themselves. Those of SGLang before 0.5.22 take
// neither messages nor responses in pairs (pd/connector, sglangBefore22): they get a message as the chat that means the
// same. What cannot be sent so is refused, unless other servers of the model take it as it is.
func (x *exchange) taken(req *pd.Request) (*pd.Request, error) {
	if req.Dialect != api.Messages && req.Dialect != api.Responses { // all take the others
		return req, nil
	}
	takes, lacks := x.server.takers(req)
	if !lacks {
		return req, nil
	}
	err := errNoTranslation
	if x.conn != nil { // a proxy sends what it has
		var chat *pd.Request
		if chat, err = asChat(req, x.server.enginesOf(req.Model)); err == nil {
			x.translated = true
			return chat, nil
		}
	}
	if takes {
		return req, nil
	}
	return nil, noChat(req, "", "The prefill and decode servers of this model do not serve ", err)
}

// takers reports whether servers of the request's model take it as it is, a decode server by itself or one of each role,
// and whether a server does not.
func (s *Server) takers(req *pd.Request) (takes, lacks bool) {
	now := time.Now()
	var prefill, decode bool
	for _, server := range s.fleet.Servers() {
		if !server.Serves(req.Model, now) {
			continue
		}
		by := connector.Of(server)
		if !by.Takes(req.Dialect) {
			lacks = true
			continue
		}
		prefill = prefill || server.Role.Serves(pools.Prefill)
		decode = decode || server.Role.Serves(pools.Decode)
		takes = takes || server.Role.Serves(pools.Decode) && by.Aggregated
	}
	return takes || prefill && decode, lacks
}
