// Package council lets several replicas of the gateway bind requests as one. One of
// them is elected through Redis (Election); the others send it a ticket for each
// request that waits (Follower), and it says whose turn it is and where (Server). A
// hop costs a few per cent of what one decider gains over several that decide apart.
//
// Nothing depends on it: a follower that hears nothing for a tenth of a second lets
// each of its waiting requests be bound at once, by its own knowledge. Two deciders
// at a time, while Redis fails over, cost quality and nothing else.
package council

//go:generate protoc --go_out=councilpb --go_opt=paths=source_relative --go-grpc_out=councilpb --go-grpc_opt=paths=source_relative council.proto
