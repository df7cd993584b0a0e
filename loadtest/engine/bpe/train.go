package bpe

import (
	"container/heap"
	"slices"
)

// Train learns up to count merges from a text: again and again the most frequent
// pair of neighbouring tokens becomes a token. Ties go to the pair of the oldest
// tokens, so equal texts give equal merges. No token grows beyond maxBytes, which
// keeps the trainer from learning whole phrases of its text by heart, and a pair
// seen once is never merged.
func Train(text string, count, maxBytes int) []Merge {
	tr := newTrainer(text, maxBytes)
	var merges []Merge
	for len(merges) < count {
		pair, ok := tr.mostFrequent()
		if !ok {
			break
		}
		tr.merge(pair, byteTokens+int32(len(merges)))
		merges = append(merges, pair)
	}
	return merges
}

// trainer holds the text as linked pieces and, for each pair of neighbours, how
// often and where it occurs.
type trainer struct {
	maxBytes int
	ids      []int32 // token that begins at each position; none inside a token
	left     []int32
	right    []int32
	size     []int // bytes of each token
	pairs    map[Merge]*occurrences
	queue    pairQueue // may hold stale counts
}

// occurrences of one pair. Places may be stale: a place counts only while the pair
// is still there.
type occurrences struct {
	count  int
	places []int32
}

func newTrainer(text string, maxBytes int) *trainer {
	tr := &trainer{
		maxBytes: maxBytes,
		ids:      make([]int32, len(text)),
		left:     make([]int32, len(text)),
		right:    make([]int32, len(text)),
		pairs:    map[Merge]*occurrences{},
	}
	for range byteTokens {
		tr.size = append(tr.size, 1)
	}
	for i := range len(text) {
		tr.ids[i], tr.left[i], tr.right[i] = int32(text[i]), int32(i)-1, int32(i)+1
	}
	if len(text) > 0 {
		tr.right[len(text)-1] = none
	}
	for i := 0; i+1 < len(text); i++ {
		tr.add(int32(i))
	}
	for pair, o := range tr.pairs {
		tr.queue = append(tr.queue, candidate{pair, o.count})
	}
	heap.Init(&tr.queue)
	return tr
}

// pairAt is the pair that begins at place i; ok is false at the end of the text.
func (tr *trainer) pairAt(i int32) (pair Merge, ok bool) {
	if i == none || tr.ids[i] == none || tr.right[i] == none {
		return Merge{}, false
	}
	return Merge{tr.ids[i], tr.ids[tr.right[i]]}, true
}

// add counts the pair at place i.
func (tr *trainer) add(i int32) (pair Merge, ok bool) {
	pair, ok = tr.pairAt(i)
	if !ok || tr.size[pair.Left]+tr.size[pair.Right] > tr.maxBytes {
		return pair, false
	}
	o := tr.pairs[pair]
	if o == nil {
		o = &occurrences{}
		tr.pairs[pair] = o
	}
	o.count++
	o.places = append(o.places, i)
	return pair, true
}

// remove takes back the count of the pair at place i.
func (tr *trainer) remove(i int32) {
	if pair, ok := tr.pairAt(i); ok {
		if o := tr.pairs[pair]; o != nil {
			o.count--
		}
	}
}

// mostFrequent pops the pair with the highest true count. Counts only fall while a
// pair waits in the queue, or it is pushed again, so a stale entry is corrected and
// put back.
func (tr *trainer) mostFrequent() (pair Merge, ok bool) {
	for tr.queue.Len() > 0 {
		top := heap.Pop(&tr.queue).(candidate)
		o := tr.pairs[top.pair]
		if o == nil || o.count < 2 {
			continue
		}
		if o.count == top.count {
			return top.pair, true
		}
		if o.count < top.count {
			heap.Push(&tr.queue, candidate{top.pair, o.count})
		}
	}
	return Merge{}, false
}

// merge replaces every occurrence of pair, from left to right, by the new token.
func (tr *trainer) merge(pair Merge, token int32) {
	tr.size = append(tr.size, tr.size[pair.Left]+tr.size[pair.Right])
	places := tr.pairs[pair].places
	delete(tr.pairs, pair)
	slices.Sort(places)
	grown := map[Merge]bool{}
	for _, i := range places {
		if now, ok := tr.pairAt(i); !ok || now != pair {
			continue
		}
		second, before := tr.right[i], tr.left[i]
		tr.remove(before)
		tr.remove(second)
		tr.ids[i], tr.ids[second] = token, none
		tr.right[i] = tr.right[second]
		if tr.right[i] != none {
			tr.left[tr.right[i]] = i
		}
		for _, place := range []int32{before, i} {
			if p, ok := tr.add(place); ok {
				grown[p] = true
			}
		}
	}
	delete(tr.pairs, pair) // occurrences that overlapped ("aaa") may have put it back
	for p := range grown {
		if o := tr.pairs[p]; o != nil {
			heap.Push(&tr.queue, candidate{p, o.count})
		}
	}
}

// candidate is a pair with its count at the time it was queued.
type candidate struct {
	pair  Merge
	count int
}

// pairQueue orders candidates by count, then by age of their tokens.
type pairQueue []candidate

func (q pairQueue) Len() int { return len(q) }
func (q pairQueue) Less(i, j int) bool {
	a, b := q[i], q[j]
	if a.count != b.count {
		return a.count > b.count
	}
	if a.pair.Left != b.pair.Left {
		return a.pair.Left < b.pair.Left
	}
	return a.pair.Right < b.pair.Right
}
func (q pairQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *pairQueue) Push(x any)   { *q = append(*q, x.(candidate)) }
func (q *pairQueue) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	*q = (*q)[:last]
	return x
}
