package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/loadtest/testlog"
	"github.com/tandem-gateway/tandem/pools"
)

// registered follows the registry until the test ends and returns what it found last.
func registered(t *testing.T, client redis.UniversalClient, log *testlog.Buffer) (found func() string) {
	t.Helper()
	var mu sync.Mutex
	ids := "nothing yet"
	r := NewRegistry(client, "test:", func(specs []pools.Spec) {
		mu.Lock()
		defer mu.Unlock()
		var all []string
		for _, s := range specs {
			all = append(all, s.ID()+" "+s.Role.String())
		}
		ids = strings.Join(all, ", ")
	}, slog.New(slog.NewTextHandler(log, nil)))
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return ids
	}
}

func newTestRedis(t *testing.T) (*redisserver.Server, redis.UniversalClient) {
	t.Helper()
	server := redisserver.Start(t)
	client := redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs: []string{server.Addr()}, MaxRetries: -1, ContextTimeoutEnabled: true,
		DialTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
	})
	t.Cleanup(func() { _ = client.Close() })
	return server, client
}

func TestRegistry_ServersComeAndGo(t *testing.T) {
	server, client := newTestRedis(t)
	ctx := t.Context()
	var log testlog.Buffer
	found := registered(t, client, &log)
	eventually(t, "no server is there", func() bool { return found() == "" })

	// As a start script would, with redis-cli.
	client.Set(ctx, "test:server:a", `{"url":"http://127.0.0.1:1","role":"prefill","rack":"r1"}`, time.Minute)
	client.SAdd(ctx, "test:servers", "a")
	eventually(t, "a server has registered", func() bool { return found() == "127.0.0.1:1 prefill" })

	life, leave := context.WithCancel(context.Background())
	left := make(chan error, 1)
	go func() {
		left <- Register(life, client, "test:", Entry{URL: "http://127.0.0.1:2", Role: "decode"}, time.Second, slog.New(slog.DiscardHandler))
	}()
	eventually(t, "another one is registered", func() bool { return found() == "127.0.0.1:2 decode, 127.0.0.1:1 prefill" })
	leave()
	if err := <-left; err != nil {
		t.Error(err)
	}
	eventually(t, "it has left", func() bool { return found() == "127.0.0.1:1 prefill" })

	for name, record := range map[string]string{
		"b": `{"url":"http://127.0.0.1:3"}`, "c": `no JSON`, "d": `{"url":"file:///etc/passwd","role":"both"}`, "e": strings.Repeat(" ", maxRecord+10),
	} {
		client.Set(ctx, "test:server:"+name, record, time.Minute)
		client.SAdd(ctx, "test:servers", name)
	}
	client.Set(ctx, "test:server:f", `{"url":"http://127.0.0.1:4","role":"both"}`, time.Minute)
	client.SAdd(ctx, "test:servers", "f")
	eventually(t, "what is of no use is passed over", func() bool { return found() == "127.0.0.1:1 prefill, 127.0.0.1:4 both" })

	client.PExpire(ctx, "test:server:a", time.Millisecond)
	eventually(t, "one that fell silent is forgotten", func() bool { return found() == "127.0.0.1:4 both" })
	eventually(t, "its name is taken out of the set", func() bool {
		return !slices.Contains(client.SMembers(ctx, "test:servers").Val(), "a")
	})

	server.Kill()
	eventually(t, "it is seen that Redis is away", func() bool { return strings.Contains(log.String(), "not readable") })
	if got := found(); got != "127.0.0.1:4 both" {
		t.Errorf("Redis is away, and the servers are %q", got)
	}
}

// A Redis that is emptied, or comes back empty, holds no record of servers that are there: they stay
// until they have registered again, or had a time for that.
func TestRegistry_ServersThatRedisLostStayToRegisterAgain(t *testing.T) {
	for name, lose := range map[string]func(*redisserver.Server){
		"emptied":     func(s *redisserver.Server) { s.Do("flushall") },
		"comes empty": (*redisserver.Server).Restart,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, client := newTestRedis(t)
			ctx := t.Context()
			register := func(name, url string) {
				eventually(t, name+" is registered", func() bool {
					return client.Set(ctx, "test:server:"+name, `{"url":"`+url+`","role":"both"}`, time.Minute).Err() == nil && client.SAdd(ctx, "test:servers", name).Err() == nil
				})
			}
			type report struct {
				at    time.Time
				names string
			}
			var mu sync.Mutex
			reports := []report{{}}
			last := func() report {
				mu.Lock()
				defer mu.Unlock()
				return reports[len(reports)-1]
			}
			r := NewRegistry(client, "test:", func(specs []pools.Spec) {
				var all []string
				for _, s := range specs {
					all = append(all, s.ID())
				}
				slices.Sort(all)
				mu.Lock()
				defer mu.Unlock()
				reports = append(reports, report{time.Now(), strings.Join(all, ", ")})
			}, slog.New(slog.DiscardHandler))
			r.registerAgain = 5 * time.Second
			ctx, stop := context.WithCancel(ctx)
			var running sync.WaitGroup
			running.Go(func() { r.Run(ctx) })
			defer running.Wait()
			defer stop()

			register("a", "http://127.0.0.1:1")
			register("b", "http://127.0.0.1:2")
			eventually(t, "both are found", func() bool {
				return last().names == "127.0.0.1:1, 127.0.0.1:2" && client.Exists(ctx, "test:registry").Val() == 1
			})
			lost := time.Now()
			lose(server)
			register("a", "http://127.0.0.1:3") // at once: no look need find nothing
			eventually(t, "one has registered again, as another", func() bool { return last().names == "127.0.0.1:2, 127.0.0.1:3" })
			client.SRem(ctx, "test:servers", "a")
			eventually(t, "it leaves, and is forgotten at once", func() bool { return last().names == "127.0.0.1:2" })
			eventually(t, "the other one is forgotten", func() bool { return last().names == "" })
			if stayed := last().at.Sub(lost); stayed < r.registerAgain {
				t.Errorf("forgotten after %v, want %v at least", stayed, r.registerAgain)
			}
		})
	}
}

// A Redis that takes no records loses those of servers that are there: they stay as long as that lasts.
func TestRegistry_ServersStayWhileRedisTakesNoRecords(t *testing.T) {
	for name, refuse := range map[string][]any{
		"full":            {"config", "set", "maxmemory", "1"},
		"a replica":       {"replicaof", "127.0.0.1", "1"},
		"refuses its own": {"config", "set", "min-replicas-to-write", "3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, client := newTestRedis(t)
			var log testlog.Buffer
			found := registered(t, client, &log)
			if err := client.Set(t.Context(), "test:server:a", `{"url":"http://127.0.0.1:1","role":"both"}`, 3*time.Second).Err(); err != nil {
				t.Fatal(err)
			}
			client.SAdd(t.Context(), "test:servers", "a")
			eventually(t, "it is found", func() bool { return found() == "127.0.0.1:1 both" })
			server.Do(refuse...)
			eventually(t, "its record ends and is missed", func() bool {
				return client.Exists(t.Context(), "test:server:a").Val() == 0 && strings.Contains(log.String(), "cannot be repeated")
			})
			if got := found(); got != "127.0.0.1:1 both" {
				t.Errorf("then there is %q", got)
			}
		})
	}
}

// Who stays without a record, look by look: where one was lost for a time that no second loss makes longer, where none can
// be written as long as that is so, and nobody who left.
func TestRegistry_WhoStaysWithoutARecord(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	r := NewRegistry(nil, "", nil, slog.New(slog.DiscardHandler))
	for step, x := range []struct {
		after time.Duration
		lost  loss
		there string // names with a record
		want  string
	}{
		{0, nothingLost, "a b c", "a b c"},
		{time.Second, nothingLost, "a b", "a b"}, // c has left
		{time.Second, mayBeLost, "a b", "a b"},   // theirs may be missing at the next look
		{time.Second, nothingLost, "a", "a b"},
		{time.Second, nothingLost, "", "b"},       // a has registered again, and left
		{50 * time.Second, mayBeLost, "d", "b d"}, // a second loss
		{20 * time.Second, nothingLost, "d", "d"}, // b had its minute
		{time.Second, refused, "d", "d"},
		{time.Second, refused, "", "d"},
		{10 * time.Minute, refused, "", "d"},
		{30 * time.Second, nothingLost, "", "d"},
		{31 * time.Second, nothingLost, "", ""},
	} {
		at = at.Add(x.after)
		known := map[string]registration{}
		for _, name := range strings.Fields(x.there) {
			known[name] = registration{id: name}
		}
		r.keep(known, x.lost, at)
		r.known = known
		if got := strings.Join(slices.Sorted(maps.Keys(known)), " "); got != x.want {
			t.Errorf("look %d: %q, want %q", step, got, x.want)
		}
	}
}

// halfAnswered fails the replies behind a number of a pipeline, and says of the whole what
// its first reply says, as a cluster of which a part is away.
type halfAnswered struct {
	redis.Hook
	answered atomic.Int64 // replies that come; negative: all
}

func (h *halfAnswered) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (h *halfAnswered) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (h *halfAnswered) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		n := int(h.answered.Load())
		if n < 0 || n >= len(cmds) {
			return next(ctx, cmds)
		}
		err := next(ctx, cmds[:n])
		for _, cmd := range cmds[n:] {
			cmd.SetErr(errors.New("CLUSTERDOWN Hash slot not served"))
		}
		return err
	}
}

func TestRegistry_AHalfAnsweredLookChangesNothing(t *testing.T) {
	_, client := newTestRedis(t)
	ctx := t.Context()
	hook := &halfAnswered{}
	hook.answered.Store(-1)
	client.(*redis.Client).AddHook(hook)
	for _, name := range []string{"a", "b"} {
		client.Set(ctx, "test:server:"+name, fmt.Sprintf(`{"url":"http://%s:1","role":"both"}`, name), time.Hour)
		client.SAdd(ctx, "test:servers", name)
	}
	r := NewRegistry(client, "test:", nil, slog.New(slog.DiscardHandler))
	if specs, err := r.readAll(ctx); len(specs) != 2 || err != nil {
		t.Fatalf("%v, %v", specs, err)
	}
	hook.answered.Store(1)
	if specs, err := r.readAll(ctx); err == nil {
		t.Errorf("half of it was answered, and the fleet is %v", specs)
	}
	hook.answered.Store(-1)
	if names := client.SMembers(ctx, "test:servers").Val(); len(names) != 2 {
		t.Errorf("struck out: only %q are left", names)
	}
}

func TestRegistry_AForeignKeyKeepsNobodyOut(t *testing.T) {
	_, client := newTestRedis(t)
	ctx := t.Context()
	client.Set(ctx, "test:server:a", `{"url":"http://127.0.0.1:1","role":"both"}`, time.Hour)
	client.LPush(ctx, "test:server:b", "no text")
	client.SAdd(ctx, "test:servers", "a", "b")
	var log testlog.Buffer
	found := registered(t, client, &log)
	eventually(t, "the other one is found", func() bool { return found() == "127.0.0.1:1 both" })
	if text := log.String(); !strings.Contains(text, "name=b") {
		t.Errorf("it is not said which name is of no use: %s", text)
	}
}

// manyRegistered registers servers from a number on.
func manyRegistered(t testing.TB, client redis.UniversalClient, from, to int) {
	t.Helper()
	_, err := client.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for i := from; i < to; i++ {
			name := fmt.Sprintf("10.%d.%d.%d:8000", i>>16, i>>8&255, i&255)
			p.Set(t.Context(), "test:server:"+name, `{"url":"http://`+name+`","role":"decode"}`, time.Hour)
			p.SAdd(t.Context(), "test:servers", name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestRegistry_MoreNamesThanAreTakenInDoNotFlap(t *testing.T) {
	_, client := newTestRedis(t)
	manyRegistered(t, client, 500, 500+maxRegistered)
	r := NewRegistry(client, "test:", nil, slog.New(slog.DiscardHandler))
	first, err := r.readAll(t.Context())
	if err != nil || len(first) != maxRegistered {
		t.Fatalf("%d servers, %v", len(first), err)
	}
	manyRegistered(t, client, 0, 500) // they sort first, and come too late
	for range 3 {
		again, err := r.readAll(t.Context())
		if err != nil || !reflect.DeepEqual(again, first) {
			t.Fatalf("%d servers, %v, and others than before", len(again), err)
		}
	}
	if !r.tooMany {
		t.Error("it is not noted that there are more")
	}
}

// BenchmarkRegistryLook1024: budget (2-core VM) 20 ms where nothing has changed, of which a
// A look is made every 300 ms.
func BenchmarkRegistryLook1024(b *testing.B) {
	server := redisserver.Start(b)
	client := server.Client()
	manyRegistered(b, client, 0, 1024)
	r := NewRegistry(client, "test:", nil, slog.New(slog.DiscardHandler))
	b.ReportAllocs()
	for b.Loop() {
		if specs, err := r.readAll(b.Context()); err != nil || len(specs) != 1024 {
			b.Fatalf("%d servers, %v", len(specs), err)
		}
	}
}

// Servers come in the order of their names, whichever was known first; what is of no use any
// more is no server.
func TestRegistry_ServersComeInOneOrder(t *testing.T) {
	_, client := newTestRedis(t)
	ctx := t.Context()
	r := NewRegistry(client, "test:", nil, slog.New(slog.DiscardHandler))
	look := func() (ids string) {
		t.Helper()
		specs, err := r.readAll(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range specs {
			ids += s.ID() + " "
		}
		return ids
	}
	for _, one := range []struct{ name, want string }{{"b", "b:1 "}, {"d", "b:1 d:1 "}, {"a", "a:1 b:1 d:1 "}, {"c", "a:1 b:1 c:1 d:1 "}} {
		client.Set(ctx, "test:server:"+one.name, fmt.Sprintf(`{"url":"http://%s:1","role":"both"}`, one.name), time.Hour)
		client.SAdd(ctx, "test:servers", one.name)
		if got := look(); got != one.want {
			t.Errorf("%s is new: %s", one.name, got)
		}
	}
	client.Del(ctx, "test:server:b")
	client.LPush(ctx, "test:server:b", "no text")
	client.Set(ctx, "test:server:c", `{"url":"http://e:1","role":"both"}`, time.Hour)
	if got := look(); got != "a:1 e:1 d:1 " {
		t.Error(got)
	}
}

// What is no server is not registered; that Redis was away at the end is said.
func TestRegister_SaysWhatFailed(t *testing.T) {
	server, client := newTestRedis(t)
	log := slog.New(slog.DiscardHandler)
	for _, e := range []Entry{{URL: "http://127.0.0.1:2"}, {URL: "127.0.0.1:2", Role: "both"}} {
		ended, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if err := Register(ended, client, "test:", e, time.Second, log); err == nil || ended.Err() != nil {
			t.Errorf("%+v is registered: %v", e, err)
		}
		cancel()
	}
	server.Kill()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Register(ended, client, "test:", Entry{URL: "http://127.0.0.1:2", Role: "both"}, time.Second, log); err == nil {
		t.Error("it was taken out of a Redis that is away")
	}
}

// A record that is of no use is said to be so once, and again when it has been of use, or gone, in
// between; of more names than may register nothing is kept.
func TestRegistry_SaysOnceWhatIsOfNoUse(t *testing.T) {
	_, client := newTestRedis(t)
	var log testlog.Buffer
	r := NewRegistry(client, "test:", nil, slog.New(slog.NewTextHandler(&log, nil)))
	const good, bad = `{"url":"http://127.0.0.1:1","role":"both"}`, `no JSON`
	client.SAdd(t.Context(), "test:servers", "a")
	for i, x := range []struct {
		record string // "": it has expired
		said   int
	}{{bad, 1}, {bad, 1}, {good, 1}, {bad, 2}, {"", 2}, {bad, 3}, {bad, 3}} {
		if x.record == "" {
			client.Del(t.Context(), "test:server:a")
		} else {
			client.Set(t.Context(), "test:server:a", x.record, time.Hour)
			client.SAdd(t.Context(), "test:servers", "a")
		}
		specs, err := r.readAll(t.Context())
		if n := strings.Count(log.String(), "name=a"); n != x.said || err != nil || (len(specs) == 1) != (x.record == good) {
			t.Errorf("%d: said %d times, want %d: %v, %v", i, n, x.said, specs, err)
		}
	}
	for i := len(r.invalid); i < maxRegistered; i++ {
		r.invalid[fmt.Sprint("other", i)] = true
	}
	if _, ok := r.read("one-more", bad, nil); ok || len(r.invalid) != maxRegistered || strings.Contains(log.String(), "name=one-more") {
		t.Errorf("%d names are kept", len(r.invalid))
	}
	r.known = map[string]registration{"b": {record: "as it was", id: "read before"}}
	if again, ok := r.read("b", "as it was", nil); !ok || again.id != "read before" {
		t.Errorf("a record that is as it was: %+v, %v", again, ok)
	}
}

// While Redis is away it is looked for a few times a second, and what it is said of is said once.
func TestRegistry_LooksAgainInAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), 10*registryInterval+time.Millisecond)
		defer stop()
		var log testlog.Buffer
		tried := 0
		const dials = 1000 // so many failures, ten for each core else, make go-redis dial in a goroutine that outlives the test
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1, PoolSize: dials, Dialer: func(context.Context, string, string) (net.Conn, error) {
			if tried++; tried > 100 {
				stop() // else it would go on for ever
			}
			return nil, errors.New("away")
		}})
		defer func() { _ = client.Close() }()
		NewRegistry(client, "test:", nil, slog.New(slog.NewTextHandler(&log, nil))).Run(ctx)
		if tried < 11 || tried > 33 { // go-redis may dial more than once
			t.Errorf("looked %d times", tried)
		}
		if n := strings.Count(log.String(), "not readable"); n != 1 {
			t.Errorf("said %d times: %s", n, log.String())
		}
	})
}

// Of two records of one server one counts, and both are named, once until one of them changes.
func TestRegistry_SaysWhichOfTwoRecordsOfAServerCounts(t *testing.T) {
	_, client := newTestRedis(t)
	var log testlog.Buffer
	r := NewRegistry(client, "test:", nil, slog.New(slog.NewTextHandler(&log, nil)))
	set := func(name, role string) {
		client.Set(t.Context(), "test:server:"+name, `{"url":"http://127.0.0.1:1","role":"`+role+`"}`, time.Hour)
		client.SAdd(t.Context(), "test:servers", name)
	}
	for i, x := range []struct {
		change func()
		role   pools.Role // of the server that is found
		logged []string   // on which records, the one that counts first
	}{
		{func() { set("b", "prefill") }, pools.Prefill, nil},
		{func() { set("c", "decode") }, pools.Prefill, []string{"b", "c"}},
		{func() {}, pools.Prefill, nil},
		{func() { set("c", "both") }, pools.Prefill, []string{"b", "c"}},
		{func() { set("a", "decode") }, pools.Decode, []string{"a", "b", "a", "c"}},
		{func() {}, pools.Decode, nil},
		{func() { client.Del(t.Context(), "test:server:a", "test:server:b") }, pools.Both, nil},
		{func() { set("d", "both") }, pools.Both, []string{"c", "d"}},
	} {
		before := log.String()
		x.change()
		specs, err := r.readAll(t.Context())
		if err != nil || len(specs) != 1 || specs[0].Role != x.role {
			t.Errorf("%d: %+v, %v", i, specs, err)
		}
		want := ""
		for pair := range slices.Chunk(x.logged, 2) {
			want += `msg="a server is registered by two records, the first counts" server=127.0.0.1:1 first=` + pair[0] + " second=" + pair[1] + "\n"
		}
		if got := withoutTimes(strings.TrimPrefix(log.String(), before)); got != want {
			t.Errorf("%d: logged\n%swant\n%s", i, got, want)
		}
	}
}

// withoutTimes are the lines of a log from their message on.
func withoutTimes(log string) (lines string) {
	for line := range strings.Lines(log) {
		lines += line[strings.Index(line, "msg="):]
	}
	return lines
}

// A field that only a newer gateway knows keeps no server out, and one that is mistyped is seen.
func TestRegistry_SaysOnceWhichFieldIsNotKnown(t *testing.T) {
	_, client := newTestRedis(t)
	hook := &halfAnswered{}
	hook.answered.Store(-1)
	client.(*redis.Client).AddHook(hook)
	var log testlog.Buffer
	r := NewRegistry(client, "test:", nil, slog.New(slog.NewTextHandler(&log, nil)))
	client.SAdd(t.Context(), "test:servers", "a", "b")
	client.Set(t.Context(), "test:server:b", `{"url":"http://127.0.0.1:2","role":"both"}`, time.Hour)
	for i, x := range []struct {
		more     string // of the record
		answered int64
		logged   string
	}{
		{`"colour":"red"`, 1, ""}, // such a look may come again and again
		{`"colour":"red"`, -1, `unknown field \"colour\"`},
		{`"colour":"red"`, -1, ""},
		{`"colour":"blue"`, -1, `unknown field \"colour\"`},
		{`"rack":"r1"`, -1, ""},
		{`"rak":"r1"`, -1, `unknown field \"rak\"`},
	} {
		before := log.String()
		client.Set(t.Context(), "test:server:a", `{"url":"http://127.0.0.1:1","role":"both",`+x.more+`}`, time.Hour)
		hook.answered.Store(x.answered)
		specs, err := r.readAll(t.Context())
		if (err != nil) != (x.answered >= 0) || err == nil && len(specs) != 2 {
			t.Errorf("%d: %+v, %v", i, specs, err)
		}
		got := strings.TrimPrefix(log.String(), before)
		if strings.Count(got, "name=a") != min(len(x.logged), 1) || !strings.Contains(got, x.logged) {
			t.Errorf("%d: logged %q", i, got)
		}
	}
}
