package election

import (
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/redisserver"
)

func TestOffice_OneHasItAndAnEmptiedRedisFindsOneOfAHigherEpoch(t *testing.T) {
	r := redisserver.Start(t)
	a := NewRecordLease(r.Client(), key, Record{Replica: "a", Address: "10.0.0.1:1", Token: "s1"}, life)
	b := NewRecordLease(r.Client(), key, Record{Replica: "b", Address: "10.0.0.2:2", Token: "s2"}, life)
	first, err := a.Hold(t.Context())
	if err != nil || first.Replica != "a" || first.Address != "10.0.0.1:1" || first.Token != "s1" || first.Epoch == 0 {
		t.Fatalf("%+v, %v", first, err)
	}
	for _, o := range []*RecordLease{b, a, b} {
		if now, err := o.Hold(t.Context()); err != nil || now != first {
			t.Fatalf("%+v, %v, want %+v", now, err, first)
		}
	}
	if err := b.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now, err := b.Hold(t.Context()); err != nil || now != first {
		t.Fatalf("%+v, %v after another gave up what it does not have", now, err)
	}
	r.Do("FLUSHALL")
	second, err := b.Hold(t.Context())
	if err != nil || second.Replica != "b" || second.Epoch <= first.Epoch {
		t.Fatalf("%+v after %+v, %v", second, first, err)
	}
	if err := b.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if third, err := a.Hold(t.Context()); err != nil || third.Replica != "a" || third.Epoch <= second.Epoch {
		t.Fatalf("%+v after %+v, %v", third, second, err)
	}
}

func TestOffice_OnlyTheOneThatHasItRenewsIt(t *testing.T) {
	r := redisserver.Start(t)
	a := NewRecordLease(r.Client(), key, Record{Replica: "a"}, life)
	b := NewRecordLease(r.Client(), key, Record{Replica: "b"}, life)
	if _, err := a.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.Client().PExpire(t.Context(), key, life/2)
	if _, err := b.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ttl := left(t, r); ttl > life/2 || ttl <= 0 {
		t.Errorf("it lives for %v after another one asked", ttl)
	}
	if _, err := a.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ttl := left(t, r); ttl <= life/2 {
		t.Errorf("it lives for %v after it was renewed", ttl)
	}
}

func TestOffice_ARecordThatCannotBeReadIsAnError(t *testing.T) {
	r := redisserver.Start(t)
	r.Client().HSet(t.Context(), key, "replica", "x", "address", "y", "token", "z", "epoch", "soon")
	if record, err := NewRecordLease(r.Client(), key, Record{Replica: "a"}, life).Hold(t.Context()); err == nil {
		t.Errorf("%+v", record)
	}
}

// A replica that was killed and started anew under its name listens elsewhere. What it finds is the record of the
// process before: it neither renews nor removes it, and holds the lease when that has expired.
func TestOffice_OneStartedAnewUnderItsNameHasARecordOfItsOwn(t *testing.T) {
	r := redisserver.Start(t)
	before := NewRecordLease(r.Client(), key, Record{Replica: "a", Address: "10.0.0.1:1", Token: "s1"}, life)
	anew := NewRecordLease(r.Client(), key, Record{Replica: "a", Address: "10.0.0.1:2", Token: "s2"}, life)
	first, err := before.Hold(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r.Client().PExpire(t.Context(), key, life/2)
	if now, err := anew.Hold(t.Context()); err != nil || now != first {
		t.Fatalf("%+v, %v, want %+v", now, err, first)
	}
	if err := anew.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ttl := left(t, r); ttl > life/2 || ttl <= 0 {
		t.Errorf("the record of the process before lives for %v", ttl)
	}
	r.Client().Del(t.Context(), key)
	if now, err := anew.Hold(t.Context()); err != nil || now.Address != "10.0.0.1:2" || now.Token != "s2" || now.Epoch <= first.Epoch {
		t.Errorf("%+v, %v after %+v expired", now, err, first)
	}
}
