package pd

import (
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/transcript"
)

// mayBeSilent reports whether an engine at work may say nothing for long in the midst of an answer: where it is not to
// show its reasoning, and where tools may be called. Many parsers hold back a call, or one of its arguments, until that is
// complete, and an argument may be a file (vLLM's of Kimi K3: 32 s, vllm-project/vllm#50627; SGLang's of Qwen3 Coder and
// of GLM, sgl-project/sglang#35008, #11888).
func mayBeSilent(body api.Body) bool {
	tools := body.Get("tools")
	calls := !tools.Null() && !tools.IsEmptyArray() && string(body.Get("tool_choice")) != `"none"`
	return calls || transcript.HidesReasoning(body)
}

// idleLimit is the longest time between two events of an answer, in which an engine may be silent or not.
func (o *Orchestrator) idleLimit(silent bool) time.Duration {
	if silent {
		return max(o.Config.IdleTimeout, o.Config.AnswerTimeout)
	}
	return o.Config.IdleTimeout
}

// heldGap is longer than steps take that compute no prompt.
const heldGap = time.Second

// gapsOf is what observes the gaps of an answer. Where its engine may be silent in it, a long gap is that of many tokens, and
// teaches no step.
func (p *stepSampler) gapsOf(silent bool) func(time.Duration) {
	if !silent {
		return p.observeGap
	}
	return func(gap time.Duration) {
		if gap > heldGap {
			p.itl.Observe(gap)
			return
		}
		p.observeGap(gap)
	}
}
