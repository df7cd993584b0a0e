package gateway

import (
	"time"

	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pools"
)

// taken makes a request one that the model's decode servers take, in a pair or by themselves. Those of SGLang in decode
// mode take neither messages nor responses (pd/connector, dialectsOfSGLang): they get a message as the chat that means the
// same. What cannot be sent so is refused, unless another server of the model takes it as it is.
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

// takers reports whether a decode server of the request's model takes it as it is, and whether one does not.
func (s *Server) takers(req *pd.Request) (takes, lacks bool) {
	now := time.Now()
	for _, server := range s.fleet.Servers() {
		if !server.Role.Serves(pools.Decode) || !server.Serves(req.Model, now) {
			continue
		}
		if connector.Of(server).Takes(req.Dialect) {
			takes = true
		} else {
			lacks = true
		}
	}
	return takes, lacks
}
