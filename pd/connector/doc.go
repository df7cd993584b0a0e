// Package connector is how decode obtains the KV that prefill computed: for each way that
// engines have of handing it over a Connector, one file each, which says what both legs of a
// request are sent, whether they run one after the other or at once, and what a failure
// means. A Transfer is one attempt, with the names that both legs share, and a Handoff what
// prefill's answer gives to decode.
//
// How legs are sent, judged and tried again is pd's, and is the same for all. A connector
// knows two servers and one body; of the fleet, of other requests and of the choice of
// servers it knows nothing.
//
// A new one: a file with its Connector, a line in byName (connector.go), its name in
// pools.Connectors, and what it sends as a case of testdata/legs.txt; docs/engines.md has a
// row for each.
package connector
