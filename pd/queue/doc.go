// Package queue keeps requests until there is a place for them: in the order of classes, then
// of tenants in turn, then of arrival (fairQueue), bounded in requests, bytes and time. One that
// would wait too long is refused at once, and one with a better claim displaces another. A
// request that is past the queue and waits for servers (Queue.CountWaiting) still counts.
//
// It knows a request by its class, tenant, size and deadline, and no servers. Limit is until
// when anything is waited for. pd and gateway import it.
package queue
