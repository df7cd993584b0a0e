package connector

import (
	"cmp"
	"strconv"

	"github.com/tandem-gateway/tandem/pools"
)

// Priority is a place in the order of service, in milliseconds since 1970 of which the lower go first, as the priority
// field of a server's engine has it. Engines that schedule by priority serve
//
//   - the lower number first (vLLM);
//   - the higher one (SGLang, srt/server_args.py, where schedule_low_priority_values_first is off by default).
func Priority(s *pools.Server, key int64) []byte {
	if cmp.Or(Of(s).Engine, s.Identity().Engine) == "sglang" {
		key = -key
	}
	return strconv.AppendInt(nil, key, 10)
}
