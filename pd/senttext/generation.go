package senttext

import "sort"

// generation is what is believed of the marks of some prompts. Those that came with one prompt lie side by
// side, since a look-up of each by itself is a wait for memory: 500 of them for a prompt of 220 KB and a
// pair of servers. Marks say what text stands before them too. So where one of a run is another prompt's,
// all before it in the run are.
type generation struct {
	runs  map[Mark]run // by their first mark
	marks int
	spans []span // of the prompt that was found last
}

// run are marks that follow each other in a prompt.
type run []place

// place is a mark and what is believed of it.
type place struct {
	mark Mark
	sighting
}

// known is what a generation knows of the first marks of a prompt, until the next is found.
type known struct {
	spans []span
	n     int // marks
}

// span are some marks, of which the first is of the prompt's number from.
type span struct {
	from int
	run  run
}

// find finds the first n marks of a prompt, as far as they are known.
func (g *generation) find(n int, mark func(i int) Mark) known {
	k := known{spans: g.spans[:0]}
	for k.n < n {
		r := g.runs[mark(k.n)]
		if r == nil {
			break
		}
		same := min(len(r), n-k.n)
		if r[same-1].mark != mark(k.n+same-1) {
			same = sort.Search(same, func(i int) bool { return r[i].mark != mark(k.n+i) })
		}
		k.spans = append(k.spans, span{k.n, r[:same]})
		k.n += same
	}
	g.spans = k.spans
	return k
}

// at is what is believed of the mark of a number, nil where it is not known.
func (k *known) at(i int) *sighting {
	if i >= k.n {
		return nil
	}
	s := k.spans[sort.Search(len(k.spans), func(s int) bool { return k.spans[s].from > i })-1]
	return &s.run[i-s.from].sighting
}

// add adds marks that follow those which are known.
func (g *generation) add(r run) {
	if g.runs == nil {
		g.runs = make(map[Mark]run)
	}
	g.runs[r[0].mark] = r
	g.marks += len(r)
}
