package senttext

import (
	"math"
	"slices"
	"sort"
)

// generation is what is believed of the marks of some prompts. Those that came with one prompt lie side by
// side, since a look-up of each by itself is a wait for memory: 500 of them for a prompt of 220 KB and a
// pair of servers. Marks say what text stands before them too. So where one of a run is another prompt's,
// all before it in the run are.
type generation struct {
	runs  map[Mark]*run // by their first mark
	spans []span        // of the prompt that was found last
}

// run are marks that follow each other in a prompt, and what is believed of all of them alike: where that comes
// to differ, the run is split.
type run struct {
	marks []Mark
	sighting
}

// known is what a generation knows of the first marks of a prompt, until the next is found.
type known struct {
	spans []span
	n     int // marks
}

// span are the first n marks of a run, of which the first is of the prompt's number from.
type span struct {
	from, n int
	run     *run
}

// find finds the first n marks of a prompt, as far as they are known.
func (g *generation) find(n int, mark func(i int) Mark) known {
	k := known{spans: g.spans[:0]}
	for k.n < n {
		r := g.runs[mark(k.n)]
		if r == nil {
			break
		}
		same := min(len(r.marks), n-k.n)
		if r.marks[same-1] != mark(k.n+same-1) {
			same = sort.Search(same, func(i int) bool { return r.marks[i] != mark(k.n+i) })
		}
		k.spans = append(k.spans, span{k.n, same, r})
		k.n += same
	}
	g.spans = k.spans
	return k
}

// number is the number of the span that a mark is in, which is known.
func (k *known) number(i int) int {
	return sort.Search(len(k.spans), func(s int) bool { return k.spans[s].from > i }) - 1
}

// at is what is believed of the mark of a number, nil where it is not known.
func (k *known) at(i int) *sighting {
	if i >= k.n {
		return nil
	}
	return &k.spans[k.number(i)].run.sighting
}

// end is where the marks end that are known as the one of a number is: nowhere if it is not known.
func (k *known) end(i int) int {
	if i >= k.n {
		return math.MaxInt
	}
	s := k.spans[k.number(i)]
	return s.from + s.n
}

// add adds marks that follow those which are known.
func (g *generation) add(marks []Mark, believed sighting) {
	if g.runs == nil {
		g.runs = make(map[Mark]*run)
	}
	g.runs[marks[0]] = &run{marks, believed}
}

// split splits the runs of a prompt that was found last, so that each of its spans is a whole run, and none goes
// past an end of others.
func (g *generation) split(k *known, others []span) {
	for _, other := range others {
		end := other.from + other.n
		if end >= k.n {
			break
		}
		number := k.number(end)
		s := &k.spans[number]
		if s.from == end || end-s.from >= len(s.run.marks) { // the latter where marks repeat, as no prompt's do
			continue
		}
		rest := span{end, s.from + s.n - end, g.splitRun(s.run, end-s.from)}
		s.n = end - s.from
		k.spans = slices.Insert(k.spans, number+1, rest)
	}
	for _, s := range k.spans {
		if s.n < len(s.run.marks) {
			g.splitRun(s.run, s.n)
		}
	}
	g.spans = k.spans
}

// splitRun makes the marks of a run from the n-th on one of their own, and returns it.
func (g *generation) splitRun(r *run, n int) (rest *run) {
	g.add(r.marks[n:], r.sighting)
	rest = g.runs[r.marks[n]]
	r.marks = r.marks[:n:n]
	return rest
}
