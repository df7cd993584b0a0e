package share

import "math/bits"

// Class is requests of like lengths: of prompts between two powers of two, from 1,024
// tokens to 65,536, with short or with long answers.
//
//	class      0      1      2      3      4       5       6       7
//	prompt   < 1 Ki < 2 Ki < 4 Ki < 8 Ki < 16 Ki < 32 Ki < 64 Ki  more
//
// These have answers of fewer than LongAnswer tokens; 8 to 15 are the same with more.
type Class int

const (
	Classes    = 2 * prompts
	LongAnswer = 512 // tokens
	prompts    = 8
)

// ClassOf is the class of a request, by the tokens of its prompt and those that its answer
// is expected to have.
func ClassOf(promptTokens, outputTokens int) Class {
	c := min(bits.Len(uint(max(promptTokens, 0))>>10), prompts-1)
	if outputTokens >= LongAnswer {
		c += prompts
	}
	return Class(c)
}
