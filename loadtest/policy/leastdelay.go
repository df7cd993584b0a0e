package policy

import (
	"math"
	"slices"
)

// task is the prefill of a request: when it may begin, and the seconds of work that it is at least.
type task struct{ arrived, work float64 }

const (
	// A run is divided into spells of equal length, each with a price: so many at most, and not so many that
	// the longest task needs more than a part of them.
	mostSpells, mostSpellsOfTask = 8000, 200
	// mostDelay is the most seconds of delay and price that a task counts with: see leastNoise.
	mostDelay = 30.0
	// priceRounds is how many times the prices are corrected.
	priceRounds = 60
)

// leastDelay is a sum of seconds, over tasks in order of arrival, that no schedule is below by which they
// end later than if each had a server to itself. The servers do rate seconds of work in a second
// together, and one of them at most one. Each task may be interrupted and moved at any time at no cost,
// and everything is known beforehand.
//
// It is weak duality. Let a second of a server cost a price, which changes over the run, and let each
// task pay for what it uses: it then chooses by itself, of all servers that it could have alone, when
// it is worked on, so that its delay and what it pays are least. A schedule that the servers can
// execute uses at most rate in each second, so that its delays are at least what all tasks would choose
// to pay and wait, less what all the time of all servers costs. That holds for any prices; good
// ones are found by raising them where more is asked for than there is, and lowering them elsewhere.
func leastDelay(tasks []task, rate float64) float64 {
	if len(tasks) == 0 {
		return 0
	}
	p := newPrices(tasks)
	best := 0.0 // all prices 0
	for round := range priceRounds {
		best = max(best, p.bound(tasks, rate))
		if !p.correct(rate, 2/math.Sqrt(float64(1+round))) {
			break
		}
	}
	return best
}

// prices are those of a second of a server, by spell. Behind the last spell it costs nothing.
type prices struct {
	from  float64 // when the first spell begins
	spell float64 // seconds of one
	price []float64
	used  []float64 // seconds that the tasks chose of each spell at the last bound

	chosen, best []use // scratch
}

// use is seconds of a spell that a task is worked on in.
type use struct {
	spell   int
	seconds float64
}

func newPrices(tasks []task) *prices {
	from, until, longest := tasks[0].arrived, 0.0, 1e-9
	for _, t := range tasks {
		until, longest = max(until, t.arrived+2*t.work), max(longest, t.work)
	}
	spell := max((until-from)/mostSpells, longest/mostSpellsOfTask)
	spells := 1 + int((until-from)/spell)
	return &prices{from: from, spell: spell, price: make([]float64, spells), used: make([]float64, spells)}
}

// bound is what tasks wait and pay at these prices, less what the servers' time costs.
func (p *prices) bound(tasks []task, rate float64) float64 {
	clear(p.used)
	sum := 0.0
	for _, t := range tasks {
		sum += min(p.choose(t), mostDelay)
		for _, u := range p.best {
			if u.spell < len(p.used) {
				p.used[u.spell] += u.seconds
			}
		}
	}
	for _, price := range p.price {
		sum -= rate * p.spell * price
	}
	return sum
}

// at is the price in a spell.
func (p *prices) at(spell int) float64 {
	if spell < len(p.price) {
		return p.price[spell]
	}
	return 0
}

// choose is the least that a task waits and pays, and leaves in best when it is worked on. The later it
// ends, the cheaper seconds it can choose from: it goes on from its earliest end, and moves its work from
// the dearest spell to the one that it comes to where that is cheaper.
func (p *prices) choose(t task) float64 {
	p.chosen = p.chosen[:0]
	spell := int((t.arrived - p.from) / p.spell)
	left := p.from + float64(spell+1)*p.spell - t.arrived // of the spell
	paid := 0.0
	for work := t.work; work > 0; {
		seconds := min(work, left)
		if spell >= len(p.price) {
			seconds = work
		}
		p.chosen = append(p.chosen, use{spell, seconds})
		paid += seconds * p.at(spell)
		work, left = work-seconds, left-seconds
		if left <= 0 {
			spell, left = spell+1, p.spell
		}
	}
	least := paid
	p.best = append(p.best[:0], p.chosen...)
	for waited := 0.0; waited < least; {
		dearest := p.dearest()
		saved := p.at(p.chosen[dearest].spell) - p.at(spell)
		if saved <= 0 {
			if spell >= len(p.price) {
				break
			}
			waited += left
			spell, left = spell+1, p.spell
			continue
		}
		seconds := p.chosen[dearest].seconds
		if spell < len(p.price) {
			seconds = min(seconds, left)
		}
		p.move(dearest, spell, seconds)
		waited, paid, left = waited+seconds, paid-saved*seconds, left-seconds
		if waited+paid < least {
			least = waited + paid
			p.best = append(p.best[:0], p.chosen...)
		}
		if left <= 0 {
			spell, left = spell+1, p.spell
		}
	}
	return least
}

// dearest is the place of what is chosen of the dearest spell.
func (p *prices) dearest() int {
	dearest := 0
	for i := range p.chosen {
		if p.at(p.chosen[i].spell) > p.at(p.chosen[dearest].spell) {
			dearest = i
		}
	}
	return dearest
}

// move lets seconds of what is chosen be in another spell instead.
func (p *prices) move(from, to int, seconds float64) {
	p.chosen[from].seconds -= seconds
	if p.chosen[from].seconds <= 0 {
		p.chosen = slices.Delete(p.chosen, from, from+1)
	}
	if last := len(p.chosen) - 1; last >= 0 && p.chosen[last].spell == to {
		p.chosen[last].seconds += seconds
		return
	}
	p.chosen = append(p.chosen, use{to, seconds})
}

// correct raises the prices of spells of which more was chosen than there is, and lowers the others'.
// False: nothing costs anything then.
func (p *prices) correct(rate, by float64) (any bool) {
	for k := range p.price {
		p.price[k] = max(0, p.price[k]+by*(p.used[k]/p.spell-rate)/rate)
		any = any || p.price[k] > 0
	}
	return any
}
