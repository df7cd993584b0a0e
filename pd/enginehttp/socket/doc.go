// Package socket reads and writes TCP connections without telling the Go runtime's monitor of each system call, and
// waits for many of them in one goroutine (Loop).
//
// A system call of package net is announced to the runtime, since it might block: the runtime's monitor wakes up,
// and looks every 20 microseconds for some time whether it does. A socket of Go never blocks in a system call; it is
// waited for by the poller. In a gateway that has little to do each event of a stream woke the monitor: that
// was a tenth of its CPU, and a seventh at 500 requests a second. What may differ from package net is
// nothing else: deadlines, Close and errors are those of the connection, and whoever waits does so in the runtime's
// poller.
//
// A goroutine that waits for a connection is woken up by way of the runtime's scheduler, and with it at times a thread
// that finds nothing to do: some 4 us of the 20 that an event of a stream takes. A Loop waits for all connections that
// it is given by an epoll of its own. To that end a connection leaves the runtime's poller, which would wake up a thread
// in any case: it is taken by a second descriptor, and the first one is closed.
//
// Other systems than Linux, and programs built for the race detector, which has to see system calls to know
// what they order, read and write by package net. Other systems have no Loop.
package socket
