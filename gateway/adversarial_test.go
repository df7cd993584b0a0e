package gateway

import (
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
)

// adversarial are bodies made to cost much: the API, and what is repeated between a head
// and a tail until the body has its size.
var adversarial = []struct {
	name             string
	d                *api.Dialect
	head, unit, tail string
}{
	{"a long text", api.Chat, `{"model":"m","messages":[{"role":"user","content":"`, "lorem ipsum ", `"}]}`},
	{"a text of escapes", api.Chat, `{"model":"m","messages":[{"role":"user","content":"`, `\u00e9`, `"}]}`},
	{"a name of escapes", api.Chat, `{"messages":[{}],"model":"`, `\u00e9`, `"}`},
	{"a key of escapes", api.Chat, `{"messages":[{}],"model":"m","`, `\u00e9`, `":1}`},
	{"many messages", api.Chat, `{"model":"m","messages":[{}`, `,{}`, `]}`},
	{"deep messages", api.Chat, `{"model":"m","messages":[{}`, `,` + strings.Repeat(`[`, 250) + strings.Repeat(`]`, 250), `]}`},
	{"many fields", api.Chat, `{"model":"m","messages":[{}]`, `,"#":1`, `}`},
	{"a control field in many cases", api.Chat, `{"model":"m","messages":[{}]`, `,"@":1`, `}`},
	{"nested containers", api.Chat, strings.Repeat(`{"extra_body":`, 250) + `{"a":[1`, `,1`, `]}` + strings.Repeat(`}`, 250)},
	{"containers as deep as they may be", api.Chat, `{"model":"m","messages":[{}],` + strings.Repeat(`"rid":1,"extra_body":{`, 4) + `"rid":1,"a":[1`, `,1`, `]}}}}}`},
	{"containers around a text", api.Chat, `{"model":"m","messages":[{}],` + strings.Repeat(`"rid":1,"extra_body":{`, 4) + `"rid":1,"a":"`, `lorem ipsum `, `"}}}}}`},
	{"a list of containers", api.Chat, `{"model":"m","messages":[{}],"extra_body":[{}`, `,{}`, `]}`},
	{"a list in lists", api.Chat, `{"model":"m","messages":[{}],"extra_body":[`, strings.Repeat(`[`, 100) + strings.Repeat(`]`, 100) + `,`, `1]}`},
	{"token ids", api.Completions, `{"model":"m","prompt":[1`, `,1`, `]}`},
	{"many prompts", api.Completions, `{"model":"m","prompt":[""`, `,""`, `]}`},
	{"stops", api.Completions, `{"model":"m","prompt":"a","stop":[""`, `,""`, `]}`},
	{"stop tokens", api.Completions, `{"model":"m","prompt":"a","stop_token_ids":[1`, `,1`, `]}`},
	{"a long number", api.Completions, `{"model":"m","prompt":"a","max_tokens":1`, `0`, `}`},
	{"many biases", api.Chat, `{"model":"m","messages":[{}],"logit_bias":{"a":1`, `,"#":1`, `}}`},
	{"sampling parameters", api.Generate, `{"text":["a"],"sampling_params":[{}`, `,{}`, `]}`},
	{"texts", api.Generate, `{"text":[""`, `,""`, `]}`},
	{"ids", api.Generate, `{"input_ids":[1`, `,1`, `]}`},
	{"ids in lists", api.Generate, `{"input_ids":[[1]`, `,[1]`, `]}`},
	{"fields that are not let through", api.Generate, `{"text":"a"`, `,"#":1`, `}`},
}

// adversarialBody is of some bytes; # is another number each time, @ another way to write
// bootstrap_host.
func adversarialBody(head, unit, tail string, size int) []byte {
	var b strings.Builder
	b.WriteString(head)
	for i := 0; b.Len()+len(tail) < size; i++ {
		switch {
		case strings.Contains(unit, "#"):
			b.WriteString(strings.Replace(unit, "#", fmt.Sprint(i), 1))
		case strings.Contains(unit, "@"):
			name := []byte("bootstrap_host")
			for bit := range name {
				if i>>bit&1 == 1 && name[bit] != '_' {
					name[bit] -= 'a' - 'A'
				}
			}
			b.WriteString(strings.Replace(unit, "@", string(name), 1))
		default:
			b.WriteString(unit)
		}
	}
	b.WriteString(tail)
	return []byte(b.String())
}

// Budget (2-core VM): 20 ms a megabyte, whatever the body, refused or not, and memory for a
// few copies of it.
func BenchmarkParse_Adversarial(b *testing.B) {
	for _, x := range adversarial {
		for _, size := range []int{16 << 10, 4 << 20} {
			raw := adversarialBody(x.head, x.unit, x.tail, size)
			b.Run(fmt.Sprintf("%s/%dKB", strings.ReplaceAll(x.name, " ", "_"), size>>10), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					_, _ = parse(x.d, raw)
				}
				b.ReportMetric(b.Elapsed().Seconds()*1000/float64(b.N)/(float64(len(raw))/(1<<20)), "ms/MB")
			})
		}
	}
}

// No body costs much more than its bytes. Its time of the CPU is held against that of
// reading the same number of bytes of numbers once, which no machine does much faster, its
// memory against the bytes. The fraction keeps them from being skipped as a list of ids.
func TestEdge_NoBodyCostsMuchMoreThanItsBytes(t *testing.T) {
	const readings, copies = 20, 12
	for _, size := range []int{24 << 10, 512 << 10} {
		plain := adversarialBody(`{"a":[1.5`, `,1`, `]}`, size)
		once, _ := costOf(t, plain, 0, func() { _, _ = api.ParseBody(plain) })
		for _, x := range adversarial {
			raw := adversarialBody(x.head, x.unit, x.tail, size)
			took, held := costOf(t, raw, readings*once, func() { _, _ = parse(x.d, raw) })
			if took > readings*once {
				t.Errorf("%s of %d KB: %v of CPU, reading as much once takes %v", x.name, size>>10, took, once)
			}
			if held > copies*uint64(len(raw))+256<<10 {
				t.Errorf("%s of %d KB: %d KB allocated", x.name, size>>10, held>>10)
			}
		}
	}
}

// costOf returns the least time of the CPU that one of some runs takes, each of at least
// 256 KB, and the bytes that it allocates. No more runs follow one that took no longer than most.
func costOf(t *testing.T, raw []byte, most time.Duration, run func()) (took time.Duration, allocated uint64) {
	times := max(1, (256<<10)/len(raw))
	took = time.Hour
	for range 3 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := cpuTime(t)
		for range times {
			run()
		}
		took = min(took, (cpuTime(t)-start)/time.Duration(times))
		runtime.ReadMemStats(&after)
		allocated = (after.TotalAlloc - before.TotalAlloc) / uint64(times)
		if took <= most {
			break
		}
	}
	return took, allocated
}

func cpuTime(t testing.TB) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	// Only their sum is exact: the kernel shares it out between the two by what it met at its
	// ticks.
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
