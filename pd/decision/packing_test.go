package decision

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/packing"
	"github.com/tandem-gateway/tandem/pools"
)

// notPacked are the fields that are not read of a decision on a request that has ended: what is computed anew when it
// is explained, and what the choice alone asked.
var notPacked = []string{"Evidence", "Shares", "nextStep", "reference", "referenceStep", "firstAlike"}

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
		d.Add(Record{RequestID: id, At: arrived, Choices: []Choice{{Reason: id}}, Ended: i%3 == 0})
		if i%3 == 1 {
			d.Complete(id, arrived, 0, Measured{Whole: time.Duration(i)}, "")
		}
		if i%3 == 2 && i > 10 { // a while later, and again
			d.Complete(fmt.Sprint(i-9), arrived, 0, Measured{Whole: time.Duration(i)}, "")
			d.Complete(fmt.Sprint(i-9), arrived, 0, Measured{Whole: time.Duration(i - 9)}, "")
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
		id := fmt.Sprint(d.first + i)
		found, ok := d.Find(id)
		want := time.Duration(0)
		if (d.first+i)%3 > 0 && d.first+i < 20_000-9 {
			want = time.Duration(d.first + i)
		}
		if !ok || found.RequestID != id || found.Choices[0].Reason != id || (d.first+i < 20_000-9 && found.Choices[0].Measured.Whole != want) {
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

// What it takes to remember a decision that has ended, and how many bytes that is.
func BenchmarkRecords_Add(b *testing.B) {
	d := NewRecords(time.Hour, 32<<20)
	var choice Choice
	decode := cost.Candidate{ID: "127.0.0.1:8001", Queued: 3, Running: 60, KVUsed: 100_000, Prefill: pools.Default().Prefill, Step: pools.Default().Step}
	choice.Candidates.Decode, choice.Chosen.Decode = []cost.Candidate{decode}, decode.ID
	b.ReportAllocs()
	for i := range b.N {
		id := fmt.Sprint(i)
		d.Add(Record{RequestID: id, At: arrived, Choices: []Choice{choice}, Outcome: "served"})
		d.Complete(id, arrived, 0, Measured{Whole: time.Second}, "")
	}
	b.ReportMetric(float64(d.used)/float64(len(d.kept)), "bytes/decision")
}
