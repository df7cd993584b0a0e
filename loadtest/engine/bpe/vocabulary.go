package bpe

import (
	_ "embed" // the trained merges
	"fmt"
	"strings"
	"sync"
)

// How merges.txt was made; a test makes it again.
const (
	trainSeed     = 1
	trainBytes    = 600_000
	trainMerges   = 3824 // with 256 bytes and 16 special tokens: 4096
	trainMaxBytes = 16
)

// Names of the special tokens of the vocabulary, all "<|...|>".
const (
	Begin          = "<|begin|>"         // first token of every prompt made of text
	EndOfTurn      = "<|end|>"           // ends a message; the model stops with it
	System         = "<|system|>"        // a message of this role follows
	User           = "<|user|>"          //
	Assistant      = "<|assistant|>"     //
	Tool           = "<|tool|>"          //
	Tools          = "<|tools|>"         // definitions of tools follow
	Call           = "<|call|>"          // a tool call by the assistant follows
	Media          = "<|media|>"         // stands for an image or a sound
	EndOfReasoning = "<|end-reasoning|>" // the answer follows
)

//go:embed merges.txt
var mergeList string

// Default is the vocabulary that simulated engines speak: 4096 tokens.
var Default = sync.OnceValue(func() *Tokenizer {
	merges, err := parseMerges(mergeList)
	if err != nil {
		panic("bpe: merges.txt: " + err.Error())
	}
	specials := []string{Begin, EndOfTurn, System, User, Assistant, Tool, Tools, Call, Media, EndOfReasoning}
	for i := len(specials); i < 16; i++ {
		specials = append(specials, fmt.Sprintf("<|reserved-%d|>", i))
	}
	t, err := New(merges, specials)
	if err != nil {
		panic("bpe: merges.txt: " + err.Error())
	}
	return t
})

// parseMerges reads one merge a line: two token ids.
func parseMerges(list string) ([]Merge, error) {
	var merges []Merge
	for line := range strings.Lines(list) {
		var m Merge
		if _, err := fmt.Sscanf(line, "%d %d", &m.Left, &m.Right); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(merges)+1, err)
		}
		merges = append(merges, m)
	}
	return merges, nil
}
