package load

import (
	"encoding/hex"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"
)

// pushedBySGLang is a LoadStat as the encoder of sglang 0.5.23 wrote it: 3 running and 2 waiting of 9,000
// uncached tokens, 70,000 of 400,000 tokens of KV in use, on rank 1.
const pushedBySGLang = "9ba84c6f6164537461740302ce00011170ce00061a8001cd2328ce0001349840ce0012d687ce0074cbb1"

func TestParsePushed_WhatSGLangWrites(t *testing.T) {
	payload, err := hex.DecodeString(pushedBySGLang)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParsePushed(payload)
	want := Load{
		Engine: "sglang", Running: known(3), Waiting: known(2), RunningTokens: known(70_000), KVTokens: known(400_000),
		KVUsed: known(0.175), WaitingTokens: known(9000),
	}
	if err != nil || got.Engine != want.Engine || got.Running != want.Running || got.Waiting != want.Waiting ||
		got.RunningTokens != want.RunningTokens || got.KVTokens != want.KVTokens || got.KVUsed != want.KVUsed || got.WaitingTokens != want.WaitingTokens {
		t.Errorf("%+v, %v", got, err)
	}
	for n := range payload {
		if _, err := ParsePushed(payload[:n]); err == nil && n < len(payload)-16 { // behind the waiting tokens nothing is read
			t.Errorf("cut at %d it is read", n)
		}
	}
}

// What is not told is unknown, never zero; what is no load is refused.
func TestParsePushed_OtherForms(t *testing.T) {
	stat := func(tag string, values ...int) []byte {
		b := msgp.AppendString(msgp.AppendArrayHeader(nil, uint32(1+len(values))), tag)
		for _, v := range values {
			b = msgp.AppendInt(b, v)
		}
		return b
	}
	old, err := ParsePushed(stat("LoadStat", 1, 0, 32, 0, 0)) // the first six places, of a capacity that is not known
	if err != nil || old.Running != known(1) || old.Waiting != known(0) || old.KVUsed.Known || old.KVTokens.Known || old.WaitingTokens.Known {
		t.Errorf("%+v, %v", old, err)
	}
	for name, payload := range map[string][]byte{
		"nothing": nil, "another tag": stat("Other", 1, 2, 3, 4), "too short": stat("LoadStat", 1, 2, 3), "below zero": stat("LoadStat", 1, -2, 3, 4),
		"a map": msgp.AppendMapHeader(nil, 0), "tokens below zero": stat("LoadStat", 1, 2, 3, 4, 0, -1),
	} {
		if l, err := ParsePushed(payload); err == nil {
			t.Errorf("%s: %+v", name, l)
		}
	}
}

func FuzzParsePushed(f *testing.F) {
	payload, err := hex.DecodeString(pushedBySGLang)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(payload)
	f.Fuzz(func(t *testing.T, payload []byte) {
		l, err := ParsePushed(payload)
		for name, v := range l.Readings() {
			if !usable(v) || err == nil && name == KVUsed && v > 1 {
				t.Errorf("%s is %v", name, v)
			}
		}
	})
}

func TestSumOfRanks(t *testing.T) {
	start := time.Unix(100, 0)
	sum := SumOfRanks([]Load{
		{Engine: "sglang", Running: known(3), Waiting: known(1), KVUsed: known(0.2), KVTokens: known(10), WaitingTokens: known(7), At: start.Add(time.Second)},
		{Engine: "sglang", Running: known(4), Waiting: known(0), KVUsed: known(0.7), KVTokens: known(10), At: start},
	})
	if sum.Running != known(7) || sum.Waiting != known(1) || sum.KVUsed != known(0.7) || sum.KVTokens != known(20) || !sum.At.Equal(start) {
		t.Errorf("%+v", sum)
	}
	if sum.WaitingTokens.Known { // of one rank they are not known
		t.Errorf("tokens: %+v", sum.WaitingTokens)
	}
}
