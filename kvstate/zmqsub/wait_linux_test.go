package zmqsub

import (
	"errors"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"
)

// TestWaiter_RestsWhileMessagesCome: a rest lasts its time though a message has come before it, which ends the next wait
// at once; and one that is closing ends.
func TestWaiter_RestsWhileMessagesCome(t *testing.T) {
	context, err := zmq.NewContext()
	must(t, err)
	defer func() { must(t, context.Term()) }()
	from, err := context.NewSocket(zmq.PAIR)
	must(t, err)
	to, err := context.NewSocket(zmq.PAIR)
	must(t, err)
	defer func() { must(t, errors.Join(from.Close(), to.Close())) }()
	must(t, errors.Join(to.Bind("inproc://rest"), from.Connect("inproc://rest")))
	w, err := newWaiter()
	must(t, err)
	defer func() { must(t, w.close()) }()
	must(t, w.add(to, onEvents))
	if frames, err := receive(to); frames != nil || err != nil {
		t.Fatalf("%q %v before there is anything", frames, err)
	}

	closing := make(chan struct{})
	for range 3 {
		_, err = from.SendMessage("m")
		must(t, err)
		const during = 20 * time.Millisecond
		began := time.Now()
		must(t, w.rest(during, onEvents, closing))
		if took := time.Since(began); took < during {
			t.Errorf("a rest of %v took %v", during, took)
		}
		came, err := w.until(time.Now().Add(time.Minute), onEvents, closing)
		if must(t, err); came&onEvents == 0 {
			t.Fatal("what came during a rest ends no wait")
		}
		for frames := [][]byte{nil}; frames != nil; {
			frames, err = receive(to)
			must(t, err)
		}
	}
	end := time.AfterFunc(10*time.Millisecond, func() {
		close(closing)
		_ = w.interrupt() // the wait shows whether it could
	})
	defer end.Stop()
	must(t, w.rest(time.Hour, onEvents, closing))
}
