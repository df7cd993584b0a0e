package zmqsub

import (
	"encoding/binary"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"
)

// BenchmarkSocket: events from a ZMQ socket into the index, each storing 16 blocks of 16
// tokens, one event a message. Budget: 10 us an event (100k events/s) on one core. The
// publisher, which only sends, shares the machine.
func BenchmarkSocket(b *testing.B) {
	ix, hub, p := newIndex(b), newHub(b, Default()), newPublisher(b, false)
	source, _ := subscribe(b, hub, ix, "s", Feed{Events: p.events})
	p.subscribed(source)
	const messages = 4096
	r := rand.New(rand.NewPCG(1, 1))
	payloads := make([][]byte, messages)
	for i := range payloads {
		payloads[i] = stored16(r)
	}
	must(b, p.pub.SetSndhwm(0))
	cpu := cpuTime(b)
	b.ResetTimer()
	sent := uint64(0)
	heard := func() uint64 { return source.State().Counts.Batches }
	for b.Loop() {
		payload := payloads[sent%messages]
		for i := range uint64(16) { // never the same blocks twice
			binary.BigEndian.PutUint64(payload[firstHash+9*int(i):], (16*sent+i)*0x9e3779b97f4a7c15)
		}
		if _, err := p.pub.SendMessage("kv", number(sent), payload); err != nil {
			b.Fatal(err)
		}
		if sent++; sent%1024 == 0 {
			for sent-heard() > 50_000 { // do not outrun the queue
				time.Sleep(100 * time.Microsecond)
			}
		}
	}
	until(b, func() string {
		if heard() < sent {
			return "not all heard"
		}
		return ""
	})
	b.StopTimer()
	b.ReportMetric(float64(sent)/b.Elapsed().Seconds()/1e3, "kevents/s")
	b.ReportMetric(float64((cpuTime(b)-cpu).Nanoseconds())/float64(sent), "cpu-ns/event(both-ends)")
	if c := source.State().Counts; c.Gaps > 0 || c.Stored != 16*sent {
		b.Errorf("%d gaps, %d blocks stored by %d events", c.Gaps, c.Stored, sent)
	}
}

// firstHash is where the first hash of stored16 is.
const firstHash = 1 + 9 + 1 + 1 + 1 + len("BlockStored") + 3 + 1

// stored16 is the payload of an event that stores a chain of 16 blocks.
func stored16(r *rand.Rand) []byte {
	b := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 3), 0)
	b = msgp.AppendArrayHeader(b, 1)
	b = msgp.AppendString(msgp.AppendArrayHeader(b, 7), "BlockStored")
	b = msgp.AppendArrayHeader(b, 16)
	for range 16 {
		b = msgp.AppendUint64(b, 1<<63)
	}
	b = msgp.AppendNil(b)
	b = msgp.AppendArrayHeader(b, 256)
	for range 256 {
		b = msgp.AppendUint32(b, r.Uint32N(152_000))
	}
	b = msgp.AppendInt(b, 16)
	b = msgp.AppendNil(b)
	b = msgp.AppendString(b, "GPU")
	return msgp.AppendNil(b)
}

// cpuTime is what the process has used of processors, all threads.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
