package pd

import (
	"net/http"

	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/load"
)

// askLoad returns the headers of a leg, which ask the engine for its load where that
// pays: on prefill legs, which are never streamed and come by the dozen, so that a
// prefill server's load is as fresh as its last answer.
func askLoad(header http.Header, leg Leg, server *pools.Server) http.Header {
	format := server.AsksORCA()
	if leg != PrefillLeg || format == "" {
		return header
	}
	header = header.Clone()
	header.Set(load.ORCAFormatHeader, format)
	return header
}
