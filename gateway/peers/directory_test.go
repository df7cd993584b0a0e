package peers

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/loadtest/testlog"
)

// directoryOf is the directory of one gateway. Rounds are taken by the test.
func directoryOf(t *testing.T, r *redisserver.Server, id string) *Directory {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: r.Addr(), MaxRetries: -1, DialTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second})
	t.Cleanup(func() { _ = client.Close() })
	return NewDirectory(client, "test:", Peer{ID: id, Admin: "http://" + id, Version: "v1"}, slog.New(slog.DiscardHandler))
}

func meet(t *testing.T, all ...*Directory) {
	t.Helper()
	for range 2 { // what the last one writes the first one reads
		for _, d := range all {
			if err := d.round(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func names(peers []Peer) string {
	var ids []string
	for _, p := range peers {
		ids = append(ids, p.ID)
	}
	return strings.Join(ids, " ")
}

// Gateways that share a Redis know of each other, and of one that leaves no more; what others write
// there is no gateway.
func TestDirectory_GatewaysFindEachOther(t *testing.T) {
	r := redisserver.Start(t)
	a, b, c := directoryOf(t, r, "a"), directoryOf(t, r, "b"), directoryOf(t, r, "c")
	r.Do("HSET", "test:gateways", "d", "not JSON", "e", `{"replica":"another","admin":"http://another"}`)
	meet(t, a, b, c)
	if got := names(a.Others()) + ", " + names(b.Others()); got != "b c, a c" {
		t.Errorf("a and b know %s", got)
	}
	if got := a.Others()[0]; got != (Peer{"b", "http://b", "v1"}) {
		t.Errorf("a knows of b %+v", got)
	}
	c.leave(t.Context())
	meet(t, a)
	if got := names(a.Others()); got != "b" {
		t.Errorf("when c has left a knows %s", got)
	}
}

// A gateway that died is known for half a minute, so that it is named where answers lack its own, and
// then struck out; one that shows itself is not. No other machine's clock is asked.
func TestDirectory_ADeadOneIsKnownForAWhile(t *testing.T) {
	d := NewDirectory(nil, "", Peer{ID: "self"}, slog.New(slog.DiscardHandler))
	start := time.Now()
	for second := range 40 {
		silent := d.see(map[string]string{
			"self": `{"replica":"self"}`, "dead": `{"replica":"dead","beat":7}`, "alive": fmt.Sprintf(`{"replica":"alive","beat":%d}`, second/2),
		}, start.Add(time.Duration(second)*time.Second))
		want, struckOut := "alive dead", ""
		if second > 30 {
			want, struckOut = "alive", "dead"
		}
		if got := names(d.Others()); got != want || strings.Join(silent, " ") != struckOut {
			t.Errorf("after %d s %q are known, and %q struck out", second, got, silent)
		}
	}
}

// Two gateways of one name are warned of, once: neither would count what the other has in flight and what tenants use
// there. A gateway that is started anew is not: it finds its own entry of before.
func TestDirectory_TwoGatewaysOfOneNameAreWarnedOf(t *testing.T) {
	r := redisserver.Start(t)
	var log testlog.Buffer
	logs := func(d *Directory) *Directory {
		d.log = slog.New(slog.NewTextHandler(&log, nil))
		return d
	}
	first := logs(directoryOf(t, r, "a"))
	meet(t, first)
	anew := logs(directoryOf(t, r, "a"))
	meet(t, anew, anew)
	if said := log.Take(); said != "" {
		t.Errorf("of one that was started anew the log says %q", said)
	}
	other := logs(directoryOf(t, r, "a"))
	meet(t, anew, other)
	meet(t, anew, other)
	if said := log.Take(); strings.Count(said, "level=WARN") != 2 || strings.Count(said, "has the name of this one") != 2 {
		t.Errorf("of two gateways of one name the log says %q", said)
	}
}
