package decision

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pd/packing"
	"github.com/tandem-gateway/tandem/pools"
)

// notPacked are the fields that are not read of a decision on a request that has ended: what is computed anew when it
// is explained, and what the choice alone asked.
var notPacked = []string{
	"Evidence", "Shares", "nextStep", "reference", "referenceStep", "firstAlike",
	"Class", "Topology", "Kind", "PrefillKnown", "StepKnown", "PrefillError", "StepError",
}

// fill sets each field that is packed to a value of its own.
func fill(t *testing.T, v reflect.Value, next *int) {
	t.Helper()
	*next++
	switch v.Kind() {
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(int64(*next), 5)))
			return
		}
		if v.Type() == reflect.TypeFor[order.LinkTable]() { // of the two servers of each role
			v.Set(reflect.ValueOf(order.LinkTable{
				Latency: []float64{0.1, 0.1, 0.2, math.Inf(1)}, SecondsPerByte: []float64{0.3, 0.3, 0.4, 0.4}, Fastest: 0.5,
			}))
			return
		}
		for i := range v.NumField() {
			if !slices.Contains(notPacked, v.Type().Field(i).Name) {
				fill(t, v.Field(i), next)
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), next)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(t, v.Index(0), next)
		fill(t, v.Index(1), next)
	case reflect.Array:
		for i := range v.Len() {
			fill(t, v.Index(i), next)
		}
	case reflect.String:
		v.SetString(fmt.Sprint(*next))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*next))
	case reflect.Uint64:
		v.SetUint(uint64(*next))
	case reflect.Float64:
		v.SetFloat(float64(*next) + 0.1)
	default:
		t.Fatalf("a field of kind %s", v.Kind())
	}
}

// A decision that was packed is the same, in each field that there is.
func TestRecord_IsTheSameOnceItWasPacked(t *testing.T) {
	var want, got Record
	fill(t, reflect.ValueOf(&want).Elem(), new(int))
	w := packing.Writer(nil)
	want.pack(&w)
	r := packing.Reader(w.Data())
	got.pack(&r)
	if len(r.Data()) != 0 {
		t.Fatalf("%d bytes left", len(r.Data()))
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}

// Decisions that have ended lie on pages, which go with them.
func TestRecords_PacksWhatHasEnded(t *testing.T) {
	const most = 1 << 20
	d := NewRecords(time.Hour, most)
	for i := range 20_000 {
		id := fmt.Sprint(i)
		number := d.Add(Record{RequestID: id, At: arrived, Choices: []Choice{{Reason: id}}, Ended: i%3 == 0})
		if i%3 == 1 {
			d.Complete(number, 0, Measured{Whole: time.Duration(i)}, "")
		}
		if i%3 == 2 && i > 10 { // a while later, and again
			d.Complete(number-9, 0, Measured{Whole: time.Duration(i)}, "")
			d.Complete(number-9, 0, Measured{Whole: time.Duration(i - 9)}, "")
		}
	}
	if len(d.kept) < 3000 || len(d.whole) > 9 || d.used > most || d.used != d.count() {
		t.Errorf("%d decisions, %d of them whole, in %d bytes, counted as %d", len(d.kept), len(d.whole), d.used, d.count())
	}
	onPages := 0
	for i := range d.packed.all {
		onPages += cap(d.packed.all[i].data)
	}
	if onPages > 2*most {
		t.Errorf("%d bytes of pages for %d", onPages, d.used)
	}
	for i := range d.kept {
		i += int(d.first) - 1
		id := fmt.Sprint(i)
		found, ok := d.Find(id)
		want := time.Duration(0)
		if i%3 > 0 {
			want = time.Duration(i)
		}
		if !ok || found.RequestID != id || found.Choices[0].Reason != id || (i < 20_000-9 && found.Choices[0].Measured.Whole != want) {
			t.Fatalf("of %s: %v %+v", id, ok, found)
		}
	}
}

// One that is longer than a page has a page of its own.
func TestRecords_PacksALongOne(t *testing.T) {
	d := NewRecords(time.Hour, 1<<20)
	long := string(make([]byte, 2*pageBytes))
	for i := range 3 {
		d.Add(Record{RequestID: fmt.Sprint(i), Outcome: long, Ended: true})
		d.Add(Record{RequestID: fmt.Sprint("short ", i), Ended: true})
	}
	for i := range 3 {
		if found, ok := d.Find(fmt.Sprint(i)); !ok || found.Outcome != long {
			t.Errorf("%d: %v, %d bytes", i, ok, len(found.Outcome))
		}
	}
}

// What it takes to remember a decision that has ended, and how many bytes that is, with what it chose from: one server,
// or as many prefill as decode servers, in four racks, that are known as each choice knows them anew.
func BenchmarkRecords_Add(b *testing.B) {
	for _, n := range []int{0, 8, 16, 32, 64} {
		b.Run(fmt.Sprintf("%dx%d", n, max(n, 1)), func(b *testing.B) {
			d := NewRecords(time.Hour, 32<<20)
			choice := Choice{Candidates: cost.Candidates{Prefill: busyServers(n), Decode: busyServers(max(n, 1)), Links: order.NewLinkTable(n, max(n, 1))}}
			choice.Chosen.Decode = choice.Candidates.Decode[0].ID
			for i := range choice.Candidates.Links.Latency {
				choice.Candidates.Links.Latency[i], choice.Candidates.Links.SecondsPerByte[i] = 0.0003, 1/23.1e9
				if i/n%4 == i%n%4 {
					choice.Candidates.Links.SecondsPerByte[i] = 1 / 46.3e9
				}
			}
			choice.Candidates.Links.Group(max(n, 1))
			b.ReportAllocs()
			for i := range b.N {
				id, now := fmt.Sprint(i), choice
				now.Candidates.Prefill, now.Candidates.Decode = slices.Clone(choice.Candidates.Prefill), slices.Clone(choice.Candidates.Decode)
				number := d.Add(Record{RequestID: id, At: arrived, Choices: []Choice{now}, Outcome: "served"})
				d.Complete(number, 0, Measured{Whole: time.Second}, "")
			}
			b.ReportMetric(float64(d.used)/float64(len(d.kept)), "bytes/decision")
		})
	}
}

// busyServers are servers with curves of their own.
func busyServers(n int) (all []cost.Candidate) {
	for i := range n {
		c := cost.Candidate{
			ID: fmt.Sprintf("10.0.0.%d:8000", i), Class: 0x9e3779b97f4a7c15, Topology: cost.Topology{Rack: fmt.Sprint("r", i%4), Zone: "z1"},
			Queue: 12_345_678, Queued: 3, Running: 60, Decodes: 5, KVUsed: 123_456, KVFree: 54_321, KVKnown: true, KVBytesPerToken: 131_072,
			Prefill: pools.Default().Prefill, Step: pools.Default().Step, PrefillKnown: 0.93, StepKnown: 0.87, PrefillError: 0.03, StepError: 0.02,
		}
		for k := range c.Prefill {
			c.Prefill[k] *= 1 + float64(i)/97
		}
		for k := range c.Step {
			c.Step[k] *= 1 + float64(i)/89
		}
		all = append(all, c)
	}
	return all
}
