package leader

import (
	"encoding/hex"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tandem-gateway/tandem/pd/leader/leaderpb"
)

// Replicas of two versions work together while the gateway is rolled out: the name of the
// method and the numbers of the fields are those of the first version.
func TestWire_StaysAsItIs(t *testing.T) {
	if leaderpb.Decider_Decide_FullMethodName != "/tandem.council.v1.Decider/Decide" {
		t.Errorf("the method is %s", leaderpb.Decider_Decide_FullMethodName)
	}
	request := &leaderpb.RemoteRequest{
		Id: 7, Model: "m", Base: "b", Api: "chat", Alone: true, PromptTokens: 1000, OutputTokens: 200, Class: 1, Tenant: "t",
		WaitedUs: 3, TtftUs: 4, ItlUs: 5, Excluded: []string{"d1"}, Chains: []*leaderpb.Chain{{BlockTokens: 16, Hashes: []uint64{6}}},
		Chunks: []uint64{8}, Salt: "s", LeftUs: 9,
	}
	for want, m := range map[string]proto.Message{
		"0a0b0a02723112034b45591805": &leaderpb.ToLeader{What: &leaderpb.ToLeader_Hello{Hello: &leaderpb.Hello{Replica: "r1", Token: "KEY", Epoch: 5}}},
		"1244080712016d1a0162220463686174280130e80738c80140014a01745003580460056a026431720c0810120806000000000000007a08080000000000000082010173880109": &leaderpb.ToLeader{What: &leaderpb.ToLeader_Request{Request: request}},
		"120d0807a201080a02703012026430": &leaderpb.ToLeader{What: &leaderpb.ToLeader_Request{Request: &leaderpb.RemoteRequest{
			Id: 7, Home: &leaderpb.Home{Prefill: "p0", Decode: "d0"},
		}}},
		"12050807b80101":           &leaderpb.ToLeader{What: &leaderpb.ToLeader_Request{Request: &leaderpb.RemoteRequest{Id: 7, Proxied: true}}},
		"1a020807":                 &leaderpb.ToLeader{What: &leaderpb.ToLeader_Cancel{Cancel: &leaderpb.Cancel{Id: 7}}},
		"220408071003":             &leaderpb.ToLeader{What: &leaderpb.ToLeader_Taken{Taken: &leaderpb.Taken{Id: 7, Count: 3}}},
		"2a020102":                 &leaderpb.ToLeader{What: &leaderpb.ToLeader_Work{Work: []byte{1, 2}}},
		"0a0a0807120270301a026430": &leaderpb.ToFollower{What: &leaderpb.ToFollower_Turn{Turn: &leaderpb.Turn{Id: 7, Prefill: "p0", Decode: "d0"}}},
		"120408071001":             &leaderpb.ToFollower{What: &leaderpb.ToFollower_Refused{Refused: &leaderpb.Refused{Id: 7, Reason: leaderpb.Refused_TIMEOUT}}},
	} {
		text, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if got := hex.EncodeToString(text); err != nil || got != want {
			t.Errorf("%v is %s on the wire, %v, want %s", m, got, err, want)
		}
	}
}
