// Package live is the page of the admin port that shows a gateway while it works: servers, links,
// the times of the last minutes, wanted servers and the last decisions. The page is embedded, asks
// nobody but this port, and is kept current by server-sent events; what it shows is also one JSON
// document (State), which "tandem top" reads. Nothing of it is worked out while nobody looks.
package live
