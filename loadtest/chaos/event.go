package chaos

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// Events are what happens, in the order of their times.
type Events []Event

// Event is one thing that happens to some of the actors.
type Event struct {
	at    time.Duration // since the first arrival
	label string        // for people
	names []string      // of the components that it happens to
	link  string        // or which connection; see Network
	act   func(ctx context.Context, st *testbed) error
}

// At sets the time of an event.
func At(at time.Duration, e Event) Event {
	e.at = at
	return e
}

// targets are all that the event names.
func (e Event) targets() []string {
	if e.link == "" {
		return e.names
	}
	return append(strings.Split(e.link, between), e.names...)
}

// busiest begins the name of the server of a role that has got the most requests.
const busiest = "busiest-"

// Busiest stands for the server of a role ("prefill", "decode") that has got the
// most requests by then.
func Busiest(role string) string { return busiest + role }

// each makes an event of something done to every one of the named.
func each(does string, names []string, act func(ctx context.Context, st *testbed, a *component) error) Event {
	e := Event{label: does + " " + strings.Join(names, ", "), names: names}
	e.act = func(ctx context.Context, st *testbed) error {
		for _, name := range names {
			a, err := st.find(ctx, name)
			if err != nil {
				return err
			}
			if err := act(ctx, st, a); err != nil {
				return fmt.Errorf("%s %s: %w", does, a.name, err)
			}
		}
		return nil
	}
	return e
}

// Kill ends processes as a crash does.
func Kill(names ...string) Event {
	return each("kill", names, func(_ context.Context, _ *testbed, a *component) error {
		a.process.Kill()
		return nil
	})
}

// Restart starts processes again, at their old addresses, and waits until they answer.
func Restart(names ...string) Event {
	return each("restart", names, func(ctx context.Context, st *testbed, a *component) error {
		a.process.Kill()
		return st.start(ctx, a)
	})
}

// Hang stops processes with their connections open; Continue ends that.
func Hang(names ...string) Event {
	return each("hang", names, func(_ context.Context, _ *testbed, a *component) error {
		a.process.Hang()
		return nil
	})
}

// Continue ends Hang.
func Continue(names ...string) Event {
	return each("continue", names, func(_ context.Context, _ *testbed, a *component) error {
		a.process.Continue()
		return nil
	})
}

// Throttle leaves processes a share of a CPU's time, 0..1, as a CPU limit does; Unthrottle
// ends that.
func Throttle(share float64, names ...string) Event {
	return each(fmt.Sprintf("leave %.0f %% of the CPU to", 100*share), names, func(_ context.Context, _ *testbed, a *component) error {
		a.unthrottle()
		a.throttled = a.process.Throttle(share)
		return nil
	})
}

// Unthrottle ends Throttle.
func Unthrottle(names ...string) Event {
	return each("relieve", names, func(_ context.Context, _ *testbed, a *component) error {
		a.unthrottle()
		return nil
	})
}

// Break lets engines misbehave; see engine.Fault.
func Break(fault engine.Fault, names ...string) Event {
	does := "break"
	if fault.Kind == engine.FaultStatus {
		does = fmt.Sprintf("answer %d from", fault.Status)
	} else {
		does += " (" + fault.Kind + ")"
	}
	return each(does, names, func(ctx context.Context, st *testbed, a *component) error { return st.setFault(ctx, a, &fault) })
}

// Repair ends Break.
func Repair(names ...string) Event {
	return each("heal", names, func(ctx context.Context, st *testbed, a *component) error { return st.setFault(ctx, a, nil) })
}

// Count notes how many of the clients' requests each engine has got by now, under a name;
// see Share.
func Count(name string) Event {
	return Event{label: "count (" + name + ")", act: func(ctx context.Context, st *testbed) error {
		counted, err := st.reached(ctx)
		st.counts[name] = counted
		return err
	}}
}

// Drain marks servers as draining in the gateways' file.
func Drain(names ...string) Event {
	return each("drain", names, func(_ context.Context, st *testbed, a *component) error {
		a.draining = true
		return st.writeConfig()
	})
}

// Toxin is what the network does to a connection.
type Toxin struct {
	name string
	json string // as toxiproxy reads it; empty: nothing listens
}

// What a network does.
var (
	Refusing   = Toxin{name: "refuses connections"}
	Resetting  = Toxin{"resets connections", `{"type":"reset_peer","attributes":{"timeout":0}}`}
	Blackholed = Toxin{"swallows all bytes", `{"type":"timeout","stream":"upstream","attributes":{"timeout":0}}`}
)

// Slow adds latency to every piece of data.
func Slow(by time.Duration) Toxin {
	return Toxin{fmt.Sprintf("is %v slower", by), fmt.Sprintf(`{"type":"latency","attributes":{"latency":%d}}`, by.Milliseconds())}
}

// CutAfter closes each connection after so many bytes of answers.
func CutAfter(bytes int) Toxin {
	return Toxin{fmt.Sprintf("cuts after %d bytes", bytes), fmt.Sprintf(`{"type":"limit_data","attributes":{"bytes":%d}}`, bytes)}
}

// between separates the two ends of a connection.
const between = ">"

// Network lets a connection fail: "decode-0" is that of all gateways to decode-0,
// "gateway-0>redis" that of one gateway to Redis.
func Network(t Toxin, link string) Event {
	return Event{label: "network to " + link + " " + t.name, link: link, act: func(_ context.Context, st *testbed) error {
		return st.links[link].addToxic(t)
	}}
}

// Restore ends Network.
func Restore(link string) Event {
	return Event{label: "mend the network to " + link, link: link, act: func(ctx context.Context, st *testbed) error {
		return st.links[link].removeToxics(ctx)
	}}
}
