package bpe

import (
	_ "embed" // the word list
	"fmt"
	"strings"
)

//go:embed words.txt
var wordList string

// Words is the list of English words, most common first, from which the training
// text is made.
func Words() []string { return strings.Fields(wordList) }

// Corpus writes a training text of at least size bytes: prose of Zipf-distributed
// words, with the headings, lists, code, JSON, numbers and foreign words that a
// tokenizer meets in prompts. Equal seeds give equal texts.
func Corpus(seed uint64, size int) string {
	w := &writer{words: Words(), chance: chance(seed)}
	for w.text.Len() < size {
		w.paragraph()
	}
	return w.text.String()
}

// chance is a stream of pseudo-random numbers (splitmix64): our own, so that the
// vocabulary does not depend on a library's generator.
type chance uint64

// below returns a number in 0..n-1.
func (c *chance) below(n int) int {
	*c += 0x9E3779B97F4A7C15
	z := uint64(*c)
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return int((z ^ z>>31) % uint64(n))
}

type writer struct {
	text   strings.Builder
	words  []string
	chance chance
}

// word picks by rank: half of all picks fall on the first 60 words.
func (w *writer) word() string {
	if w.chance.below(2) == 0 {
		a, b := w.chance.below(60), w.chance.below(60)
		return w.words[min(a, b)]
	}
	return w.words[w.chance.below(len(w.words))]
}

// paragraph writes a heading, a list, a piece of code or, mostly, sentences.
func (w *writer) paragraph() {
	switch w.chance.below(12) {
	case 0:
		fmt.Fprintf(&w.text, "## %s %s\n\n", title(w.word()), w.word())
	case 1:
		for range 2 + w.chance.below(4) {
			fmt.Fprintf(&w.text, "- %s %s %s\n", w.word(), w.word(), w.word())
		}
		w.text.WriteString("\n")
	case 2:
		fmt.Fprintf(&w.text, "func %s(%s int) error {\n\tif %s != nil {\n\t\treturn %s\n\t}\n\treturn nil\n}\n\n",
			w.word(), w.word(), w.word(), w.word())
	case 3:
		fmt.Fprintf(&w.text, "{\"%s\": \"%s\", \"%s\": %d, \"%s\": [%d, %d], \"%s\": true}\n",
			w.word(), w.word(), w.word(), w.chance.below(1000), w.word(), w.chance.below(100), w.chance.below(100), w.word())
	default:
		for range 2 + w.chance.below(5) {
			w.sentence()
		}
		w.text.WriteString("\n\n")
	}
}

// foreign words give the vocabulary characters of more than one byte.
var foreign = []string{"café", "naïve", "über", "größe", "señor", "été", "мир", "слово", "日本語", "中文", "你好", "안녕", "🙂", "→", "…", "“so”", "it’s"}

func (w *writer) sentence() {
	n := 5 + w.chance.below(14)
	for i := range n {
		word := w.word()
		switch {
		case i == 0:
			word = title(word)
		case w.chance.below(60) == 0:
			word = fmt.Sprint(w.chance.below(3000))
		case w.chance.below(90) == 0:
			word = foreign[w.chance.below(len(foreign))]
		}
		w.text.WriteString(word)
		if i < n-1 {
			w.text.WriteString([]string{" ", " ", " ", " ", " ", " ", " ", " ", " ", ", "}[w.chance.below(10)])
		}
	}
	w.text.WriteString([]string{". ", ". ", ". ", ". ", "? ", "! ", ": "}[w.chance.below(7)])
}

func title(word string) string { return strings.ToUpper(word[:1]) + word[1:] }
