// Package leader lets several replicas of the gateway bind requests as one. One of
// them is elected through Redis (Election); the others send it what it must know of each
// request that waits (Follower), and it answers which has its turn and where (Server). What they have
// in flight they report by the same stream (Work, Reports), sooner than through Redis. There
// and back takes a fraction of a millisecond (BenchmarkFollower_Turn). A follower that took a server
// which looks free to it, without asking, would meet there what the leader sends in the same moment:
// simulated, that costs 1 to 3 % of the mean time to the first token.
// pd, which implements Order, and cmd, which wires it, import the package.
//
// Nothing depends on a leader: a follower that receives nothing for a tenth of a second
// lets each of its waiting requests be bound at once, by its own knowledge. Two leaders
// at a time, while Redis fails over, cost quality and nothing else.
package leader

//go:generate protoc --go_out=leaderpb --go_opt=paths=source_relative --go-grpc_out=leaderpb --go-grpc_opt=paths=source_relative leader.proto
