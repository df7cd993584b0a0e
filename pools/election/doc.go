// Package election elects one of the replicas that share a Redis: the lease is a key that one of them
// holds for as long as it renews it. It knows go-redis and nothing of ours; kvstate/replicate,
// pd/leader, autoscale and pools/standby ask it which replica is to act.
//
// Two may believe for a moment that they hold the same lease: while Redis fails over, when it
// was emptied, or when the holder was stopped for longer than the lease lives. None of the
// users breaks by that; each says what it does then, and while Redis does not answer:
//
//	key                lives    renewed  while Redis does not answer          fenced by
//	kv:{…}:receiver    2 s      0.5 s    gives up after 2 s, receives alone   order of the deltas
//	kv:{…}:writer      22.5 s   not      no replica writes                    name of the snapshot
//	decider            2 s      0.5 s    the last known leader stays          epoch
//	{demand}:decider   15 s     15 s     nothing is decided                   text of the last plans
//	{gpus}             5 s      0.2 s    the manager goes on                  not
package election
