package senttext

import "github.com/tandem-gateway/tandem/kvstate/tokens"

// Mark is a chunk that is remembered, and what else makes its KV differ. Not every chunk is: of a long
// prompt it is enough to know some four of them less.
type Mark uint64

func markOf(salt uint64, c tokens.Chunk) Mark { return Mark(salt ^ uint64(c)) }

const (
	// denseChunks are remembered each: 16 KB of text, some 4,000 tokens.
	denseChunks = 64
	// stride is of how many behind them the last is remembered: at most 3 chunks, some 200 tokens, of those
	// that a server holds are not known to be held. A prompt of 220 KB has 263 marks, and not 860.
	stride = 4
)

// coveredBy is how many leading chunks of a prompt its first so many marks cover.
func coveredBy(marks int) int {
	return min(marks, denseChunks) + stride*max(0, marks-denseChunks)
}

// marksAmong is how many marks so many leading chunks have.
func marksAmong(chunks int) int {
	return min(chunks, denseChunks) + max(0, chunks-denseChunks)/stride
}

// markAt is the mark of a number of a prompt's chunks.
func markAt(salt uint64, chunks []tokens.Chunk, i int) Mark {
	return markOf(salt, chunks[coveredBy(i+1)-1])
}

// marksOf are the marks of a prompt's chunks.
func marksOf(of Salted, chunks []tokens.Chunk) []Mark {
	salt, marks := saltOf(of), make([]Mark, marksAmong(len(chunks)))
	for i := range marks {
		marks[i] = markAt(salt, chunks, i)
	}
	return marks
}
