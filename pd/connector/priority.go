package connector

import (
	"cmp"
	"math"
	"strconv"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
)

// Priority is a place in the order of service, in milliseconds since 1970 of which the lower go first, as the priority
// field of a server's engine has it; nil where its requests of an API have no such field. Engines that schedule by
// priority serve
//
//   - the lower number first (vLLM);
//   - the higher one (SGLang, srt/server_args.py, where schedule_low_priority_values_first is off by default);
//   - the higher one of those from 0 to 1, and others are refused (TensorRT-LLM, tensorrt_llm/serve/openai_protocol.py,
//     main since #15329 of June 2026: chat and completions).
func Priority(s *pools.Server, d *api.Dialect, key int64) []byte {
	switch cmp.Or(Of(s).Engine, s.Identity().Engine) {
	case "sglang":
		key = -key
	case "trtllm":
		if d != api.Chat && d != api.Completions {
			return nil
		}
		return strconv.AppendFloat(nil, float64(trtllmPriority(key)), 'g', -1, 32)
	}
	return strconv.AppendInt(nil, key, 10)
}

// trtllmBegin is the time of priority 1, in seconds since 1970: the beginning of 2025.
const trtllmBegin = 1_735_689_600

// trtllmPriority is a number for each second, below that of the second before. TensorRT-LLM keeps it in 32 bits
// (PriorityType, cpp/include/tensorrt_llm/executor/types.h). Shares of a time span would not tell seconds apart in them
// for longer than half a year; but there are numbers enough between 0 and 1 for 33 years. Within a second the first to
// come goes first.
func trtllmPriority(key int64) float32 {
	past := max(0, key/1000-trtllmBegin)
	return math.Float32frombits(math.Float32bits(1) - uint32(min(past, int64(math.Float32bits(1)))))
}
