package discovery

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/tandem-gateway/tandem/loadtest/nameserver"
	"github.com/tandem-gateway/tandem/loadtest/testlog"
	"github.com/tandem-gateway/tandem/pools"
)

// runDNS looks names up until the test ends and returns what it found last.
func runDNS(t *testing.T, server string, names ...pools.Spec) (found func() []string) {
	t.Helper()
	var mu sync.Mutex
	var ids []string
	cfg := DNSConfig{Interval: 20 * time.Millisecond, Server: server}
	d := NewDNS(cfg, func(specs []pools.Spec) {
		mu.Lock()
		defer mu.Unlock()
		ids = nil
		for _, s := range specs {
			ids = append(ids, fmt.Sprintf("%s %s %s", s.ID(), s.Role, s.Rack))
		}
	}, slog.New(slog.DiscardHandler))
	d.SetNames(names)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { d.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(ids)
	}
}

func TestDNS_NamesBecomeServers(t *testing.T) {
	n := nameserver.Start(t)
	n.Set("prefill.test.", "A", "prefill.test. 0 IN A 127.0.0.3", "prefill.test. 0 IN A 127.0.0.2")
	n.Set("_http._tcp.decode.test.", "SRV",
		"_http._tcp.decode.test. 0 IN SRV 0 0 8001 d1.test.", "_http._tcp.decode.test. 0 IN SRV 0 0 8002 d2.test.")
	n.Set("d1.test.", "A", "d1.test. 0 IN A 127.0.0.4")
	n.Set("d2.test.", "AAAA", "d2.test. 0 IN AAAA ::1")
	found := runDNS(t, n.Addr(),
		Entry{URL: "dns+http://prefill.test:8000", Rack: "r1"}.Spec(pools.Prefill), Entry{URL: "srv+http://_http._tcp.decode.test"}.Spec(pools.Decode))
	all := []string{"127.0.0.2:8000 prefill r1", "127.0.0.3:8000 prefill r1", "127.0.0.4:8001 decode ", "[::1]:8002 decode "}
	eventually(t, "all are found", func() bool { return slices.Equal(found(), all) })

	n.Set("prefill.test.", "A", "prefill.test. 0 IN A 127.0.0.3")
	without := all[1:]
	eventually(t, "one is gone", func() bool { return slices.Equal(found(), without) })

	for _, rcode := range []int{dns.RcodeServerFailure, dns.RcodeNameError} {
		n.Fail(t, rcode)
		if got := found(); !slices.Equal(got, without) {
			t.Errorf("while names cannot be resolved (%s) the servers are %v, want %v", dns.RcodeToString[rcode], got, without)
		}
	}
	n.Set("prefill.test.", "A", "prefill.test. 0 IN A 127.0.0.2")
	n.Fail(t, dns.RcodeSuccess)
	eventually(t, "names resolve again", func() bool { return slices.Contains(found(), all[0]) })
}

// A name that is not answered delays none that is.
func TestDNS_ASlowNameDelaysNoOther(t *testing.T) {
	n := nameserver.Start(t)
	asked, release := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(asked) })
	var questions atomic.Int64 // for the slow name, two or more in each lookup of it
	n.Delay(func(name string) {
		if name == "slow.test." {
			questions.Add(1)
			once()
			<-release
		}
	})
	n.Set("slow.test.", "A", "slow.test. 0 IN A 127.0.0.9")
	n.Set("quick.test.", "A", "quick.test. 0 IN A 127.0.0.2")
	found := runDNS(t, n.Addr(), Entry{URL: "dns+http://slow.test:8000"}.Spec(pools.Prefill), Entry{URL: "dns+http://quick.test:8000"}.Spec(pools.Decode))
	t.Cleanup(sync.OnceFunc(func() { close(release) }))
	<-asked
	eventually(t, "the quick one is found", func() bool { return slices.Equal(found(), []string{"127.0.0.2:8000 decode "}) })
	const changes = 10
	for i := range changes {
		n.Set("quick.test.", "A", fmt.Sprintf("quick.test. 0 IN A 127.0.1.%d", i))
		eventually(t, "and found again", func() bool { return slices.Equal(found(), []string{fmt.Sprintf("127.0.1.%d:8000 decode ", i)}) })
	}
	// Were it delayed, each change would be found at the end of a lookup of the slow one.
	if asked := questions.Load(); asked >= changes {
		t.Errorf("the slow one was asked for %d times until %d changes of the quick one were found", asked, changes)
	}
}

func TestDNS_ATargetWithoutAddressKeepsTheOthers(t *testing.T) {
	n := nameserver.Start(t)
	n.Set("_http._tcp.decode.test.", "SRV",
		"_http._tcp.decode.test. 0 IN SRV 0 0 8001 d1.test.", "_http._tcp.decode.test. 0 IN SRV 0 0 8002 d2.test.")
	n.Set("d1.test.", "A", "d1.test. 0 IN A 127.0.0.4")
	found := runDNS(t, n.Addr(), Entry{URL: "srv+http://_http._tcp.decode.test"}.Spec(pools.Decode))
	eventually(t, "one target is found", func() bool { return slices.Equal(found(), []string{"127.0.0.4:8001 decode "}) })
	n.Set("d2.test.", "A", "d2.test. 0 IN A 127.0.0.5")
	both := []string{"127.0.0.4:8001 decode ", "127.0.0.5:8002 decode "}
	eventually(t, "both are", func() bool { return slices.Equal(found(), both) })
	n.Set("d1.test.", "A")
	n.Fail(t, dns.RcodeSuccess)
	if got := found(); !slices.Equal(got, both) {
		t.Errorf("one has no address any more, and the servers are %q", got)
	}
	n.Set("_http._tcp.decode.test.", "SRV", "_http._tcp.decode.test. 0 IN SRV 0 0 8002 d2.test.")
	eventually(t, "it is no target any more", func() bool { return slices.Equal(found(), both[1:]) })
}

func TestValidateName(t *testing.T) {
	for url, good := range map[string]bool{
		"dns+http://prefill:8000":       true,
		"srv+http://_http._tcp.decode":  true,
		"dns+http://prefill":            false,
		"srv+http://_http._tcp.d:8000":  false,
		"dns+http://:8000":              false,
		"dns+http://prefill:8000/v1":    false,
		"dns+http://user:pw@prefill:80": true, // the user is dropped with the name
	} {
		if err := ValidateName(Entry{URL: url}.Spec(pools.Prefill)); (err == nil) != good {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// A name that is taken back stands for nothing at once, and when it is named again, for what it
// stands for then, not for what it did before.
func TestDNS_ANameThatIsTakenBackIsForgotten(t *testing.T) {
	n := nameserver.Start(t)
	n.Set("a.test.", "A", "a.test. 0 IN A 127.0.0.2")
	n.Set("b.test.", "A", "b.test. 0 IN A 127.0.0.3")
	a, b := Entry{URL: "dns+http://a.test:1"}.Spec(pools.Both), Entry{URL: "dns+http://b.test:1"}.Spec(pools.Both)
	reports := make(chan []string, 100)
	d := NewDNS(DNSConfig{Interval: time.Hour, Server: n.Addr()}, func(specs []pools.Spec) {
		var ids []string
		for _, s := range specs {
			ids = append(ids, s.ID())
		}
		reports <- ids
	}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { d.Run(ctx) })
	defer running.Wait()
	defer cancel()
	until := func(want ...string) {
		t.Helper()
		for {
			select {
			case got := <-reports:
				if slices.Equal(got, want) {
					return
				}
			case <-time.After(30 * time.Second):
				t.Fatalf("%v is not reported", want)
			}
		}
	}
	d.SetNames([]pools.Spec{a, b})
	until("127.0.0.2:1", "127.0.0.3:1")
	d.SetNames(nil)
	until()
	n.Set("a.test.", "A", "a.test. 0 IN A 127.0.0.9")
	n.Set("b.test.", "A", "b.test. 0 IN A 127.0.0.3")
	d.SetNames([]pools.Spec{a})
	if got := <-reports; !slices.Equal(got, []string{"127.0.0.9:1"}) {
		t.Errorf("named again it stands for %v", got)
	}
}

// That a name fails is said once, and again after it was taken back and named anew.
func TestDNS_AFailureIsSaidOnce(t *testing.T) {
	var log testlog.Buffer
	d := NewDNS(DefaultDNS(), func([]pools.Spec) {}, slog.New(slog.NewTextHandler(&log, nil)))
	a := Entry{URL: "dns+http://a.test:1"}.Spec(pools.Both)
	d.current = []pools.Spec{a}
	fail := func() { d.receive(lookup{name: a.URL, err: fmt.Errorf("lookup: %w", context.DeadlineExceeded)}) }
	said := func(when, text string, times int) {
		t.Helper()
		if got := strings.Count(log.String(), text); got != times {
			t.Errorf("%s: %q was said %d times, want %d", when, text, got, times)
		}
	}
	fail()
	fail()
	said("it fails", "not found, or a part of it", 1)
	d.receive(lookup{name: a.URL})
	d.receive(lookup{name: a.URL})
	said("it is found", "found by name again", 1)
	fail()
	said("it fails again", "not found, or a part of it", 2)
	d.current = nil
	d.forgetOthers()
	d.receive(lookup{name: a.URL})
	said("an answer that is late", "found by name again", 1)
	d.current = []pools.Spec{a}
	fail()
	said("it is named anew", "not found, or a part of it", 3)
}

// A failure names the DNS server that is configured, which is the one that was asked.
func TestDNS_AFailureNamesTheServerThatWasAsked(t *testing.T) {
	n := nameserver.Start(t)
	var log testlog.Buffer
	d := NewDNS(DNSConfig{Interval: 20 * time.Millisecond, Server: n.Addr()}, func([]pools.Spec) {}, slog.New(slog.NewTextHandler(&log, nil)))
	d.SetNames([]pools.Spec{Entry{URL: "dns+http://nowhere.test:8000"}.Spec(pools.Both)})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { d.Run(ctx) })
	defer running.Wait()
	defer cancel()
	eventually(t, "the failure is said", func() bool { return strings.Contains(log.String(), "not found, or a part of it") })
	if !strings.Contains(log.String(), "lookup nowhere.test on "+n.Addr()+": ") {
		t.Errorf("the log names another server than %s: %s", n.Addr(), &log)
	}
}

// All targets of a name are found, also where there are more than are looked up at once.
func TestDNS_ANameOfManyTargets(t *testing.T) {
	n := nameserver.Start(t)
	var records, want []string
	for i := range parallelTargets + 1 {
		host := fmt.Sprintf("d%02d.test.", i)
		records = append(records, fmt.Sprintf("_http._tcp.many.test. 0 IN SRV 0 0 80 %s", host))
		n.Set(host, "A", fmt.Sprintf("%s 0 IN A 127.0.1.%d", host, 10+i))
		want = append(want, fmt.Sprintf("127.0.1.%d:80 decode ", 10+i))
	}
	n.Set("_http._tcp.many.test.", "SRV", records...)
	found := runDNS(t, n.Addr(), Entry{URL: "srv+http://_http._tcp.many.test"}.Spec(pools.Decode))
	eventually(t, "all are found", func() bool { return slices.Equal(found(), want) })
}

// What is known of names goes with them.
func TestDNS_ForgetsNamesThatAreTakenBack(t *testing.T) {
	d := NewDNS(DNSConfig{}, nil, slog.New(slog.DiscardHandler))
	d.current = []pools.Spec{{URL: "dns+http://a:1"}}
	d.last = map[string]map[string]target{"dns+http://a:1": {"x": {}}, "dns+http://b:1": {"y": {}}}
	d.failed = map[string]string{"dns+http://a:1": "no", "dns+http://c:1": "no"}
	d.forgetOthers()
	if _, kept := d.last["dns+http://a:1"]; !kept || len(d.last) != 1 || len(d.failed) != 1 || d.failed["dns+http://a:1"] != "no" {
		t.Errorf("it knows %v, and of failures %v", d.last, d.failed)
	}
}
