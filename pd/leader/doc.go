// Package leader lets several replicas of the gateway bind requests as one. One of
// them is elected through Redis (Election); the others send it what it must know of each
// request that waits (Follower), and it answers which has its turn and where (Server). What they have
// in flight they report by the same stream (Work, Reports), sooner than through Redis. A
// hop costs a few per cent of what one leader gains over replicas that decide apart: so the leader
// says how many requests wait at it, and while there are none a follower asks only where the servers
// that are best for a request are busy.
// pd, which implements Order, and cmd, which wires it, import the package.
//
// Nothing depends on a leader: a follower that receives nothing for a tenth of a second
// lets each of its waiting requests be bound at once, by its own knowledge. Two leaders
// at a time, while Redis fails over, cost quality and nothing else.
package leader

//go:generate protoc --go_out=leaderpb --go_opt=paths=source_relative --go-grpc_out=leaderpb --go-grpc_opt=paths=source_relative leader.proto
