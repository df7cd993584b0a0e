package health

import (
	"encoding/json"
	"testing"

	"github.com/tandem-gateway/tandem/pools"
)

func TestEventSources_Ports(t *testing.T) {
	const zmq = `"enable_kv_cache_events":true,"publisher":"zmq","buffer_steps":10000,"hwm":100000,"max_queue_size":100000`
	for name, c := range map[string]struct {
		page string
		want pools.Publisher
	}{
		"events are off": {`{}`, pools.Publisher{}},
		"one rank": {`{"0":{` + zmq + `,"endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657","topic":"kv"}}`,
			pools.Publisher{EventsPort: 5557, ReplayPort: 5657, Topic: "kv", Ranks: 1}},
		"no replay": {`{"0":{` + zmq + `,"endpoint":"tcp://*:5557","replay_endpoint":null,"topic":""}}`,
			pools.Publisher{EventsPort: 5557, Ranks: 1}},
		"a rank with an API server of its own": {`{"3":{` + zmq + `,"endpoint":"tcp://*:5560","replay_endpoint":"tcp://*:5660","topic":""}}`,
			pools.Publisher{EventsPort: 5560, ReplayPort: 5660, Ranks: 1}},
		"ranks": {`{"0":{` + zmq + `,"endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657","topic":""},"1":{` + zmq + `,"endpoint":"tcp://*:5558","replay_endpoint":"tcp://*:5658","topic":""}}`,
			pools.Publisher{EventsPort: 5557, ReplayPort: 5657, Ranks: 2}},
		"a port of the system's, at the node's address": {`{"0":{` + zmq + `,"endpoint":"tcp://10.0.0.5:41233","replay_endpoint":"tcp://10.0.0.5:41234","topic":""}}`,
			pools.Publisher{EventsPort: 41233, ReplayPort: 41234, Ranks: 1}},
		"ports of the system's for each of two ranks": {`{"0":{` + zmq + `,"endpoint":"tcp://10.0.0.5:41233","topic":""},"1":{` + zmq + `,"endpoint":"tcp://10.0.0.5:39001","topic":""}}`, pools.Publisher{}},
		"it connects to its subscriber":               {`{"0":{` + zmq + `,"endpoint":"tcp://gateway:5557","topic":""}}`, pools.Publisher{}},
		"it connects to one on its machine":           {`{"0":{` + zmq + `,"endpoint":"tcp://127.0.0.1:5557","topic":""}}`, pools.Publisher{}},
		"no network":                                  {`{"0":{` + zmq + `,"endpoint":"ipc:///tmp/kv","topic":""}}`, pools.Publisher{}},
		"another publisher":                           {`{"0":{"publisher":"kafka","endpoint":"tcp://*:5557"}}`, pools.Publisher{}},
		"no port":                                     {`{"0":{` + zmq + `,"endpoint":"tcp://*:99999","topic":""}}`, pools.Publisher{}},
	} {
		var sources eventSources
		if err := json.Unmarshal([]byte(c.page), &sources); err != nil {
			t.Fatal(err)
		}
		if got := sources.ports("10.0.0.5"); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	own := eventSources{0: {Publisher: "zmq", Endpoint: "tcp://127.0.0.1:5557"}}
	if got := own.ports("127.0.0.1"); got != (pools.Publisher{}) {
		t.Errorf("an engine that connects to a gateway on its machine is listened to: %+v", got)
	}
}
