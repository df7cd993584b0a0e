package order

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"weak"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"
)

// The cases of the order are text files that a person can dispute. Regenerate
// with: go test ./pd/order -run TestOrder_Golden -rewrite
func TestOrder_Golden(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "next", "turns", "admit":
				return playOrder(t, d)
			}
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		})
	})
}

// playOrder reads servers and requests. A prefill server that got a request is busy with
// it from then on.
func playOrder(t *testing.T, d *datadriven.TestData) string {
	now := 0.0
	if d.HasArg("now") {
		now = argument(t, d, "now")
	}
	cfg := DefaultConfig()
	if d.HasArg("credit") {
		cfg.OverdueShare = 1
	}
	o := New(cfg)
	if d.HasArg("credit") {
		o.overdueCredit = 1
	}
	s := &Servers{Gate: true}
	type line struct {
		kind   string
		values map[string]float64
	}
	var lines []line
	for text := range strings.SplitSeq(strings.TrimSpace(d.Input), "\n") {
		words := strings.Fields(text)
		l := line{kind: words[0], values: make(map[string]float64)}
		for _, w := range words[1:] {
			name, value, _ := strings.Cut(w, "=")
			x, err := strconv.ParseFloat(value, 64)
			if err != nil {
				d.Fatalf(t, "%s: %v", w, err)
			}
			l.values[name] = x
		}
		lines = append(lines, l)
	}
	for _, l := range lines {
		switch l.kind {
		case "prefill":
			s.Prefill = append(s.Prefill, PrefillState{Self: -1, Ahead: l.values["ahead"], Excluded: l.values["unfit"] > 0})
		case "decode":
			s.Decode = append(s.Decode, DecodeState{Step: 0.02, Ahead: l.values["ahead"], KVRoom: int(l.values["room"]), Used: int(l.values["used"]), Running: int(l.values["running"])})
		}
	}
	s.Links = NewLinkTable(len(s.Prefill), len(s.Decode))
	for i := range s.Links.SecondsPerByte {
		s.Links.SecondsPerByte[i] = 1e-9
		if i/len(s.Decode) != i%len(s.Decode) {
			s.Links.SecondsPerByte[i] = 2e-9 // server k is nearest to server k
		}
	}
	if d.Cmd == "admit" {
		s.Now = virtual(now)
		if d.HasArg("pace") {
			o.rate.work = argument(t, d, "pace") * 1e6
			o.rate.time = 1e6
		}
	}
	var admitted strings.Builder
	for _, l := range lines {
		switch {
		case l.kind == "request" && d.Cmd == "admit":
			admitted.WriteString(playAdmit(o, ticketOf(l.values, s), s))
		case l.kind == "request":
			o.Add(ticketOf(l.values, s), s.Links)
		}
	}
	if d.Cmd == "admit" {
		return admitted.String()
	}
	return playTurns(o, s, now, d.Cmd == "turns")
}

// Requests that have gone are not kept by what a look at them was noted in: with each goes its prompt.
func TestOrder_KeepsNoRequestThatHasGone(t *testing.T) {
	const waiting = 100
	for name, look := range map[string]func(o *Order, s *Servers, all []*Ticket){
		"all are late at once": func(o *Order, s *Servers, all []*Ticket) {
			for _, k := range all {
				k.TTFT, k.Weights.LateLast = 2, true
			}
			s.Prefill[0].Ahead, s.Prefill[1].Ahead, s.Now = 10, 10, 20*time.Second
			if o.Next(s); !all[0].late {
				t.Error("they are not late")
			}
		},
		"all are priced anew at once": func(o *Order, s *Servers, all []*Ticket) {
			for _, k := range all {
				k.Outdated = true
			}
			s.Prefill[0].Ahead, s.Decode[1].Excluded = 0.5, true
			s.Renew = func(k *Ticket) { k.Outdated, k.Prefill[0], k.Prefill[1] = false, 0.01, 1.2 }
			if o.Next(s); all[waiting-1].Outdated {
				t.Error("they are not priced anew")
			}
		},
	} {
		o, s := New(DefaultConfig()), fleetOf(2, 2)
		var all []*Ticket
		var kept []weak.Pointer[Ticket]
		for id := range int64(waiting) {
			k := &Ticket{ID: id}
			k.price(s, math.Inf(1))
			k.Weights.Congestion = 0
			all, kept = append(all, k), append(kept, weak.Make(k))
			o.Add(k, s.Links)
		}
		look(o, s, all)
		for _, k := range all {
			o.Remove(k)
		}
		clear(all)
		runtime.GC()
		if n := len(slices.DeleteFunc(kept, func(k weak.Pointer[Ticket]) bool { return k.Value() == nil })); n > 1 {
			t.Errorf("%s: %d of %d are kept though none waits", name, n, waiting)
		}
		runtime.KeepAlive(o)
	}
}

func virtual(seconds float64) time.Duration { return time.Duration(seconds * 1e9) }

func argument(t *testing.T, d *datadriven.TestData, name string) float64 {
	var text string
	d.ScanArgs(t, name, &text)
	x, err := strconv.ParseFloat(text, 64)
	if err != nil {
		d.Fatalf(t, "%s: %v", name, err)
	}
	return x
}

// ticketOf reads a request: its prefill in seconds everywhere, or on server k
// with pk=, and its KV in gigabytes and tokens.
func ticketOf(values map[string]float64, s *Servers) *Ticket {
	objective := Latency
	if values["throughput"] > 0 {
		objective = Throughput
	}
	t := &Ticket{
		Weights: objective.Weights(), ID: int64(values["id"]), Arrived: virtual(values["at"]), Latest: virtual(values["latest"]), Tokens: int(values["tokens"]), Output: values["output"],
		Class: int(values["class"]), Tenant: strconv.Itoa(int(values["tenant"])), TTFT: values["ttft"],
	}
	for p := range s.Prefill {
		seconds := values["prefill"]
		if own, set := values[fmt.Sprintf("p%d", p)]; set {
			seconds = own
		}
		t.Prefill, t.Reference = append(t.Prefill, seconds), append(t.Reference, seconds)
	}
	for range s.Decode {
		t.Missing, t.Aggregated, t.Stall = append(t.Missing, values["gb"]*1e9), append(t.Aggregated, math.Inf(1)), append(t.Stall, 0)
		if alone, set := values["alone"]; set {
			t.Aggregated[len(t.Aggregated)-1] = alone
		}
	}
	return t
}

// playAdmit lets a request come. A wait is reckoned with as twice what is predicted.
func playAdmit(o *Order, t *Ticket, s *Servers) string {
	hold, gaveWay, ok := o.Admit(t, s, Forecast{Margin: func(d time.Duration) time.Duration { return 2 * d }})
	hold = hold.Round(time.Millisecond)
	if !ok {
		return fmt.Sprintf("request %d would begin in %v, and is refused\n", t.ID, hold)
	}
	text := fmt.Sprintf("request %d begins in %v\n", t.ID, hold)
	for _, w := range gaveWay {
		text += fmt.Sprintf("  request %d gives way\n", w.ID)
	}
	return text
}

// playTurns asks until no request may go; where all are to have their turn, servers are done
// with each request at once.
func playTurns(o *Order, s *Servers, now float64, all bool) string {
	var b strings.Builder
	for {
		state := &Servers{Now: virtual(now), Gate: true, Prefill: append([]PrefillState(nil), s.Prefill...), Decode: append([]DecodeState(nil), s.Decode...), Links: s.Links}
		turn, ok := o.Next(state)
		if !ok {
			break
		}
		note := ""
		if turn.Overdue {
			note = " overdue"
		}
		if turn.Prefill == Aggregated {
			fmt.Fprintf(&b, "request %d alone on decode %d%s\n", turn.Ticket.ID, turn.Decode, note)
		} else {
			fmt.Fprintf(&b, "request %d to prefill %d, decode %d%s\n", turn.Ticket.ID, turn.Prefill, turn.Decode, note)
			if !all {
				s.Prefill[turn.Prefill].Ahead += turn.Ticket.Prefill[turn.Prefill]
			}
		}
		s.Decode[turn.Decode].KVRoom -= turn.Ticket.Tokens
		s.Decode[turn.Decode].Running++
	}
	for _, t := range o.All(nil) {
		fmt.Fprintf(&b, "request %d waits\n", t.ID)
	}
	return b.String()
}

func drawLinkUse(t *rapid.T, label string) LinkUse {
	seconds := rapid.SampledFrom([]float64{0, 0.5, 3})
	return LinkUse{Moving: seconds.Draw(t, label), Coming: seconds.Draw(t, label+" later"), ComesIn: seconds.Draw(t, label+" in")}
}

// randomFleet draws servers and tickets.
func randomFleet(t *rapid.T) (*Servers, []*Ticket) {
	prefills, decodes := rapid.IntRange(1, 5).Draw(t, "prefills"), rapid.IntRange(1, 5).Draw(t, "decodes")
	seconds := rapid.Float64Range(0, 5)
	s := &Servers{
		Links: NewLinkTable(prefills, decodes), Now: 5 * time.Second, HandOff: 0.002,
		Gate: rapid.Bool().Draw(t, "gate"), Start: Pair{rapid.IntRange(0, 10).Draw(t, "start"), 1},
	}
	s.Links.Fastest = rapid.SampledFrom([]float64{0, 1e-11}).Draw(t, "fastest")
	for p := range prefills {
		s.Prefill = append(s.Prefill, PrefillState{Self: rapid.SampledFrom([]int{-1, p}).Draw(t, "self"), Stalls: rapid.SampledFrom([]int{0, 2}).Draw(t, "stalls"), Ahead: rapid.SampledFrom([]float64{0, 0.05, 0.2, 1, 4}).Draw(t, "ahead"), Excluded: rapid.IntRange(0, 9).Draw(t, "unfit") == 0, SaysFirst: rapid.Bool().Draw(t, "says first"), Sending: drawLinkUse(t, "sending")})
	}
	for range decodes {
		s.Decode = append(s.Decode, DecodeState{
			Ahead: rapid.SampledFrom([]float64{0, 0.3}).Draw(t, "prompts ahead"),
			Step:  rapid.Float64Range(0.01, 0.1).Draw(t, "step"), PerToken: rapid.Float64Range(0, 1e-6).Draw(t, "per token"), Used: rapid.IntRange(0, 100_000).Draw(t, "used"),
			KVComing: rapid.SampledFrom([]int{0, 0, 5000}).Draw(t, "coming"), KVComesIn: rapid.SampledFrom([]float64{0, 2}).Draw(t, "comes in"),
			Running: rapid.IntRange(0, 3).Draw(t, "running"), KVRoom: rapid.IntRange(0, 30_000).Draw(t, "room"), Protected: rapid.Bool().Draw(t, "protected"), Excluded: rapid.IntRange(0, 9).Draw(t, "unfit") == 0, GoesOn: rapid.Bool().Draw(t, "goes on"), Receiving: drawLinkUse(t, "receiving"),
		})
	}
	s.CompareSteps(s.MeanStep())
	for i := range s.Links.Latency {
		s.Links.Latency[i] = rapid.Float64Range(0, 0.01).Draw(t, "latency")
		s.Links.SecondsPerByte[i] = rapid.Float64Range(1e-11, 1e-9).Draw(t, "per byte")
	}
	var tickets []*Ticket
	for id := range rapid.IntRange(1, 12).Draw(t, "tickets") {
		k := &Ticket{ID: int64(id), Arrived: virtual(seconds.Draw(t, "arrived")), Tokens: rapid.IntRange(100, 20_000).Draw(t, "tokens"),
			Output: 300, Weights: rapid.SampledFrom([]Objective{Latency, Throughput}).Draw(t, "objective").Weights(), PairsFirst: rapid.Bool().Draw(t, "pairs first"), TTFT: rapid.SampledFrom([]float64{0, 3, 10}).Draw(t, "ttft"), ITL: rapid.SampledFrom([]float64{0, 0.05}).Draw(t, "itl"), FirstFromPrefill: rapid.Bool().Draw(t, "first from prefill"), Eviction: rapid.SampledFrom([]float64{0, 0.5, 3}).Draw(t, "eviction")}
		for range prefills {
			k.Prefill, k.Reference = append(k.Prefill, seconds.Draw(t, "prefill")), append(k.Reference, seconds.Draw(t, "reference"))
		}
		for range rapid.IntRange(0, prefills).Draw(t, "told") { // the rest fit
			k.HardwareMismatch = append(k.HardwareMismatch, rapid.Float64Range(0, 2).Draw(t, "misfit"))
		}
		for range decodes {
			k.Missing = append(k.Missing, rapid.Float64Range(0, 5e9).Draw(t, "missing"))
		}
		for range decodes {
			k.Aggregated = append(k.Aggregated, rapid.OneOf(seconds, rapid.Just(math.Inf(1))).Draw(t, "alone"))
			k.Stall = append(k.Stall, rapid.Float64Range(0, 0.1).Draw(t, "stall"))
		}
		for range rapid.IntRange(0, decodes).Draw(t, "go on") { // the streams of the rest stand still
			k.StreamShare = append(k.StreamShare, rapid.Float64Range(0.05, 1).Draw(t, "stream share"))
		}
		k.Class, k.Tenant = rapid.IntRange(0, 1).Draw(t, "class"), rapid.SampledFrom([]string{"", "a"}).Draw(t, "tenant")
		tickets = append(tickets, k)
	}
	return s, tickets
}

// slowWillHaveRoom is willHaveRoom: there is room for a request when its prompt is computed, and still when the others
// have come that room is kept for.
func slowWillHaveRoom(t *Ticket, d *DecodeState) bool {
	answers := d.Step * t.Output // seconds in which each sequence has ended once
	freed := max(0, float64(d.Used-d.KVComing)/answers-float64(d.Running)/d.Step/2)
	room := float64(d.KVRoom) + 0.3*freed*t.leastPrefill
	if t.leastPrefill >= d.KVComesIn {
		return room >= float64(t.Tokens)
	}
	return room+float64(d.KVComing) >= float64(t.Tokens) && float64(d.KVRoom)+freed*d.KVComesIn >= float64(t.Tokens)
}

// slowCost is what a pair costs, as Servers.Best says it, infinite where it may not be.
func slowCost(s *Servers, t *Ticket, pair Pair, price float64) float64 {
	d := &s.Decode[pair.Decode]
	hasRoom := d.KVRoom >= t.Tokens || d.Running == 0 || pair.Prefill != Aggregated && slowWillHaveRoom(t, d)
	if d.Excluded || s.Gate && !hasRoom {
		return math.Inf(1)
	}
	there, misses := d.Step+d.PerToken*float64(t.Tokens), 0
	if t.ITL > 0 && there > t.ITL {
		misses++
	}
	cost := t.Weights.Decode * t.Output * (d.Step + t.Weights.Beyond*d.Beyond + d.PerToken*float64(t.Tokens*d.Running))
	if d.Protected {
		cost += t.Eviction
	}
	if !s.Gate && d.Running > 0 && d.KVRoom < t.Tokens {
		there += float64(t.Tokens-d.KVRoom) / float64(max(d.Used, t.Tokens)) * d.Step * t.Output
	}
	if pair.Prefill == Aggregated {
		there += d.Ahead + t.Aggregated[pair.Decode]
		share := 1.0
		if pair.Decode < len(t.StreamShare) {
			share = t.StreamShare[pair.Decode]
		}
		if t.FirstFromPrefill {
			share *= besideFirstGaps
		}
		if pair.Decode < len(t.StreamShare) && t.StreamShare[pair.Decode] < 1 {
			share *= 1 - s.StreamDiscount
		}
		cost += t.Aggregated[pair.Decode] * (share*float64(d.Running) + expectedArrivals)
		if s.KVPrice != 0 { // that times infinite is no number
			cost += s.KVPrice * (float64(d.Used+t.Tokens)*t.Aggregated[pair.Decode] + float64(t.Tokens)*d.Ahead)
		}
		if t.ITL > 0 && t.Stall[pair.Decode] > t.ITL {
			misses += max(1, d.Running)
		}
		if t.PairsFirst {
			misses++
		}
	} else {
		p, i := &s.Prefill[pair.Prefill], pair.Prefill*len(s.Decode)+pair.Decode
		if p.Excluded || p.Self == pair.Decode || math.IsInf(t.Prefill[pair.Prefill]+t.Missing[pair.Decode], 1) {
			return math.Inf(1)
		}
		wait := 0.0
		if s.Gate && t.Missing[pair.Decode] > 0 {
			first := s.HandOff + p.Ahead + t.Prefill[pair.Prefill]
			for _, use := range []LinkUse{p.Sending, d.Receiving} {
				free := use.Moving
				if use.ComesIn <= first && use.Coming > 0 {
					free = max(free, use.ComesIn) + use.Coming
				}
				wait = max(wait, free-first)
			}
		}
		there += max(d.Ahead, s.HandOff+p.Ahead+t.Prefill[pair.Prefill]+s.Links.Latency[i]+t.Missing[pair.Decode]*s.Links.SecondsPerByte[i]+wait)
		cost += price*t.Reference[pair.Prefill] + t.Prefill[pair.Prefill]*(float64(p.Stalls)+max(0, float64(p.Awaiting)-s.AverageAwaiting))
		if pair.Prefill < len(t.HardwareMismatch) {
			cost += t.HardwareMismatch[pair.Prefill]
		}
	}
	token := there
	if pair.Prefill != Aggregated && t.FirstFromPrefill && s.Prefill[pair.Prefill].SaysFirst && d.GoesOn {
		token = s.Prefill[pair.Prefill].Ahead + t.Prefill[pair.Prefill]
		if t.ITL > 0 {
			token += max(0, there-token-t.ITL)
		}
	}
	if t.TTFT > 0 && token > t.TTFT-(s.Now-t.Arrived).Seconds() {
		misses++
	}
	return there + cost + Miss*float64(misses)
}

// pairs yields every pair, and every decode server alone.
func pairs(s *Servers) (all []Pair) {
	for d := range s.Decode {
		all = append(all, Pair{Aggregated, d})
		for p := range s.Prefill {
			all = append(all, Pair{p, d})
		}
	}
	return all
}

// slowPrice is what a second of a request's prefill costs so many requests that wait for each server.
func slowPrice(t *Ticket, perServer float64) float64 {
	return 1 + t.Weights.Congestion*min(mostWaiting, perServer)
}

// slowWaitForPrefill are the requests that do: decode has room for all of them.
func slowWaitForPrefill(o *Order, s *Servers) (wait []*Ticket) {
	room, most := 0, -1
	for _, d := range s.Decode {
		switch {
		case d.Excluded:
		case d.Running == 0 || !s.Gate:
			return o.All(nil)
		default:
			room, most = room+max(0, d.KVRoom), max(most, d.KVRoom)
		}
	}
	for _, t := range o.All(nil) {
		if t.Begun || t.Tokens <= min(room, most) {
			wait = append(wait, t)
			if !t.Begun {
				room -= t.Tokens
			}
		}
	}
	return wait
}

// slowKVPrice is what a token of decode's KV for a second costs so many that wait for some.
func slowKVPrice(s *Servers, lacking int) float64 {
	tokens := 0
	for _, d := range s.Decode {
		if !d.Excluded {
			tokens += d.Used + max(0, d.KVRoom)
		}
	}
	return 3 * float64(lacking) / float64(max(1, tokens))
}

// slowWaitingPerServer is how many others wait for an average prefill server.
func slowWaitingPerServer(o *Order, s *Servers) float64 {
	return float64(max(0, len(slowWaitForPrefill(o, s))-1)) / float64(len(s.Prefill))
}

// slowNext is the cost of what Next returns as its comment says it, without shortcuts,
// and without those that are overdue: the least rank of those whose best pair is free. It is
// even where another choice is as good but for rounding.
func slowNext(o *Order, s *Servers) (best *Ticket, cost float64, even bool) {
	var least float64
	alike := func(a, b float64) bool { return math.Abs(a-b) < 1e-6 }
	cost, least = math.Inf(1), math.Inf(1)
	hold := make([]float64, len(s.Prefill)) // prefills of those before, by the server that they wait for
	all := o.All(nil)
	slices.SortStableFunc(all, func(a, b *Ticket) int {
		return cmp.Or(cmp.Compare(a.Class, b.Class), lastIf(a.isLate(s.Now), b.isLate(s.Now)))
	})
	gaps := o.gaps
	gaps.advance(s)
	s.StreamDiscount = gaps.discount()
	perServer, counted := slowWaitingPerServer(o, s), slowWaitForPrefill(o, s) // before room is kept for higher classes
	s.AverageAwaiting, s.KVPrice = perServer, slowKVPrice(s, len(all)-len(counted))
	decode, lacksRoom := slices.Clone(s.Decode), false
	defer func() { s.Decode = decode }()
	for i, t := range all {
		if i > 0 && t.Class != all[i-1].Class && lacksRoom {
			s.reserveMostKVRoom()
			lacksRoom = false
		}
		lacksRoom = lacksRoom || t.Tokens > s.mostKVRoom() && !slices.ContainsFunc(s.Decode, func(d DecodeState) bool { return !d.Excluded && slowWillHaveRoom(t, &d) })
		for p := range s.Prefill {
			s.Prefill[p].Awaiting = 0
			for _, behind := range all[i+1:] {
				if behind.awaited.Prefill == p && slices.Contains(counted, behind) {
					s.Prefill[p].Awaiting++
				}
			}
		}
		if best != nil && (t.Class != best.Class || t.Tenant != best.Tenant || t.isLate(s.Now) != best.isLate(s.Now)) {
			break
		}
		price, remembered := slowPrice(t, perServer), math.Inf(1) // the cost of what it was last seen to wait for
		busy, free, rank, awaited := math.Inf(1), math.Inf(1), 0.0, Aggregated
		for _, pair := range pairs(s) {
			c := slowCost(s, t, pair, price)
			if pair.Prefill == Aggregated && s.Decode[pair.Decode].Ahead > o.cfg.AheadOnDecode.Seconds() {
				continue
			}
			if pair.Prefill != Aggregated && s.Prefill[pair.Prefill].Ahead > o.cfg.Ahead.Seconds() {
				margin := o.cfg.WaitMargin / (1 + perServer)
				if c += hold[pair.Prefill] + margin*(hold[pair.Prefill]+s.Prefill[pair.Prefill].Ahead); c < busy {
					busy, awaited = c, pair.Prefill
				}
				if pair == t.awaited.Pair {
					remembered = c
				}
			} else if c < free {
				free, rank = c, t.rank
				if pair.Prefill != Aggregated {
					rank += t.Prefill[pair.Prefill] - t.leastPrefill
				}
			}
		}
		even = even || alike(free, busy) || alike(free, remembered) || alike(rank, least)
		switch goes := free < math.Inf(1) && free <= busy; {
		case goes && rank < least:
			best, cost, least = t, free, rank
		case goes:
		case remembered < free:
			hold[t.awaited.Prefill] += t.Prefill[t.awaited.Prefill]
		case free < math.Inf(1):
			hold[awaited] += t.Prefill[awaited]
		}
	}
	return best, cost, even
}

// goesBest takes the next turn, which must be that of slowNext.
func goesBest(t *rapid.T, o *Order, s *Servers) (Turn, bool) {
	want, cost, even := slowNext(o, s)
	if even {
		t.Skip("two choices are equal but for rounding")
	}
	price := 0.0
	if want != nil {
		price = slowPrice(want, slowWaitingPerServer(o, s))
	}
	s.StreamDiscount, s.KVPrice = -1, -1 // Next is to write its own
	got, any := o.Next(s)
	switch {
	case any != (want != nil) || got.Ticket != want:
		t.Fatalf("went %+v (%v), want %+v", got, any, want)
	case any && math.Abs(slowCost(s, want, got.Pair, price)-cost) > 1e-6:
		t.Fatalf("it went to %+v at %f, the best costs %f", got.Pair, slowCost(s, want, got.Pair, price), cost)
	}
	return got, any
}

func TestOrder_NextIsTheBestOfAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, tickets := randomFleet(t)
		cfg := DefaultConfig()
		cfg.OverdueAfter = time.Hour
		o := New(cfg)
		for _, k := range tickets {
			o.Add(k, s.Links)
		}
		goesBest(t, o, s)
	})
}

// What an order remembers from one look to the next, and what it works out once for links
// that are alike, changes no choice: through any history it is the best of all.
func TestOrder_NextIsTheBestOfAllAfterAnyHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, tickets := randomFleet(t)
		cfg := DefaultConfig()
		cfg.OverdueAfter = time.Hour
		o, links := New(cfg), *s.Links
		if rapid.Bool().Draw(t, "racks") { // rows that are alike
			decodes := len(s.Decode)
			for p := 1; p < len(s.Prefill); p += 2 {
				copy(links.Latency[p*decodes:(p+1)*decodes], links.Latency)
				copy(links.SecondsPerByte[p*decodes:(p+1)*decodes], links.SecondsPerByte)
			}
			links.Group(decodes)
		}
		s.Links = &links
		for _, k := range tickets {
			k.Weights = Latency.Weights() // a late one stands elsewhere, also when asked again
			o.Add(k, s.Links)
		}
		for range 12 {
			for p := range s.Prefill {
				s.Prefill[p].Ahead = rapid.SampledFrom([]float64{0, 0.2, 4}).Draw(t, "ahead")
			}
			for d := range s.Decode { // prompts ahead there make pairs equal
				s.Decode[d].KVRoom, s.Decode[d].Ahead = rapid.IntRange(0, 30_000).Draw(t, "room"), 0
			}
			k := tickets[rapid.IntRange(0, len(tickets)-1).Draw(t, "which")]
			k.Missing[0] = rapid.SampledFrom([]float64{0, 5e9}).Draw(t, "missing")
			if k.Prefill[0] = rapid.Float64Range(0.1, 3).Draw(t, "prefill"); len(s.Prefill) > 1 && rapid.Bool().Draw(t, "forbidden") {
				k.Prefill[0] = math.Inf(1)
			}
			o.Update(k, s.Links)
			turn, any := goesBest(t, o, s)
			if rapid.Bool().Draw(t, "again") && any {
				o.Add(turn.Ticket, s.Links)
			}
		}
	})
}

// slowBest is what Best returns as its comment says it; even is where another pair is as good
// but for rounding.
func slowBest(s *Servers, t *Ticket, price float64) (best Pair, least float64, even bool) {
	of := func(among func(Pair) bool) (best Pair, least float64, even bool) {
		least = math.Inf(1)
		for _, pair := range pairs(s) {
			switch cost := slowCost(s, t, pair, price); {
			case !among(pair):
			case cost < least:
				best, least, even = pair, cost, least-cost < 1e-6
			case cost-least < 1e-6:
				even = true
			}
		}
		return best, least, even
	}
	best, least, even = of(func(Pair) bool { return true })
	if math.IsInf(least, 1) || s.workAhead(best) <= idleAhead {
		return best, least, even
	}
	free, cost, likewise := of(func(pair Pair) bool { return pair.Prefill != Aggregated && s.Prefill[pair.Prefill].Ahead <= idleAhead })
	if even = even || likewise; math.IsInf(cost, 1) {
		return best, least, even
	}
	first := s.firstStep(t, free)
	if even = even || math.Abs(first-s.workAhead(best)) < 1e-6; first < s.workAhead(best) {
		return free, cost, even
	}
	return best, least, even
}

func TestServers_BestIsTheBestOfAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, tickets := randomFleet(t)
		k, price := tickets[0], rapid.Float64Range(0, 5).Draw(t, "price")
		s.setFreed()
		pair, got := s.Best(k, price)
		best, want, even := slowBest(s, k, price)
		if even {
			t.Skip("two pairs are equal but for rounding")
		}
		if got != want && math.Abs(got-want) > 1e-6 {
			t.Fatalf("%+v at %f, the best is %+v at %f", pair, got, best, want)
		}
		if !math.IsInf(got, 1) && math.Abs(slowCost(s, k, pair, price)-got) > 1e-6 {
			t.Fatalf("%+v costs %f, not %f", pair, slowCost(s, k, pair, price), got)
		}
	})
}

// Tickets come, change and go; each stays in one pair, in order of rank.
func TestOrder_KeepsTicketsInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, tickets := randomFleet(t)
		o := New(DefaultConfig())
		inside := make(map[*Ticket]bool)
		for _, k := range tickets {
			o.Add(k, s.Links)
			inside[k] = true
		}
		for range 20 {
			k := tickets[rapid.IntRange(0, len(tickets)-1).Draw(t, "which")]
			if rapid.Bool().Draw(t, "remove") {
				if o.Remove(k) != inside[k] {
					t.Fatalf("removing ticket %d: it was inside: %v", k.ID, inside[k])
				}
				delete(inside, k)
			} else if inside[k] {
				k.Prefill[0] = rapid.Float64Range(0, 5).Draw(t, "prefill")
				o.Update(k, s.Links)
			}
			for _, l := range o.queues.sorted {
				for i, w := range l.waiting {
					if !inside[w] || w.Class != l.class || w.Tenant != l.tenant || (i > 0 && byRank(l.waiting[i-1], w) >= 0) {
						t.Fatalf("ticket %d at %d is out of order", w.ID, i)
					}
				}
			}
			if n := len(o.All(nil)); n != o.Len() {
				t.Fatalf("%d in the lines, %d counted", n, o.Len())
			}
			if o.Len() != len(inside) {
				t.Fatalf("%d wait, want %d", o.Len(), len(inside))
			}
		}
	})
}

// Two servers that short requests keep busy for ever: a long one still gets its
// turn, in a time that its length sets, because it ages.
func TestOrder_NobodyStarves(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	s := &Servers{Gate: true, Prefill: []PrefillState{{Self: -1}, {Self: -1}}, Decode: []DecodeState{{Step: 0.02}}, Links: NewLinkTable(2, 1)}
	o := New(DefaultConfig())
	add := func(id int64, now, prefill float64) {
		o.Add(&Ticket{ID: id, Arrived: virtual(now), Prefill: []float64{prefill, prefill}, Reference: []float64{prefill, prefill}, Missing: []float64{0}}, s.Links)
	}
	const long = 20.0
	add(0, 0, long)
	// Short requests of 0.5 s arrive 10 % faster than two servers can do them.
	free, next := [2]float64{}, 0.0
	for now, id := 0.0, int64(1); ; now += 0.05 {
		for ; next <= now; next += 0.5 / 2.2 {
			add(id, next, 0.25+0.5*rng.Float64())
			id++
		}
		for p := range free {
			s.Prefill[p].Ahead = max(0, free[p]-now)
		}
		for {
			state := *s
			state.Now = virtual(now)
			turn, ok := o.Next(&state)
			if !ok {
				break
			}
			if turn.Ticket.ID == 0 {
				if now > 20+2*long+10 {
					t.Errorf("the long request went after %.0f s", now)
				}
				return
			}
			free[turn.Prefill] = max(free[turn.Prefill], now) + turn.Ticket.Prefill[turn.Prefill]
			s.Prefill[turn.Prefill].Ahead = free[turn.Prefill] - now
		}
		if now > 500 {
			t.Fatal("the long request never went")
		}
	}
}

// A caller that knows by itself which request may go gets the same order: those that can still
// be in time first, the shortest of them first, and those that may not go wait.
func TestOrder_ServeAsksWhoMayGo(t *testing.T) {
	links := NewLinkTable(1, 1)
	o := New(DefaultConfig())
	for id, seconds := range []float64{3, 1, 2, 12} { // the last cannot be in time
		o.Add(&Ticket{ID: int64(id), TTFT: 10, Weights: Throughput.Weights(), Prefill: []float64{seconds}, Missing: []float64{0}}, links)
	}
	var went []int64
	var before []float64
	for {
		turn, ok := o.Serve(0, func(k *Ticket, seconds float64) (Pair, bool) {
			if k.ID == 0 {
				before = append(before, seconds)
			}
			return Pair{}, k.ID != 2
		})
		if !ok {
			break
		}
		went = append(went, turn.Ticket.ID)
	}
	if !slices.Equal(went, []int64{1, 0, 3}) || o.Len() != 1 {
		t.Errorf("went %v, %d wait", went, o.Len())
	}
	if !slices.Equal(before, []float64{2}) { // the one that may not go
		t.Errorf("seconds before the one of 3 s: %v", before)
	}
}
