// Package loadtest is the load generator behind `tandem-lab load`. It sends an open
// loop of requests to any OpenAI-compatible endpoint and judges every answer.
//
// Open loop: the arrival times are fixed before the first answer is seen, so a
// slow server meets the same load as a fast one. The one exception is written
// down when it happens: an arrival beyond Config.MaxInFlight is not sent and
// counts as a failure of kind client_bound.
//
// The package imports none of the serving packages, so it can judge any gateway.
//
// Words, as in vLLM's benchmarks/serve.py:
//
//	TTFT     from sending the request to the first event that carries content
//	ITL      each gap between two such events
//	E2E      from sending the request to the end of the answer ([DONE], or the
//	         last byte of an answer that is not streamed)
//	TPOT     (E2E - TTFT) / (output tokens - 1), for answers of two tokens or more
//	goodput  requests per second that met all their SLOs; the one of ITL is for
//	         every gap of the answer (vLLM has SLOs of TTFT, TPOT and E2E only)
//
// An answer is good only when it is whole: a stream that ends cleanly without a
// finish_reason or without [DONE] is a failure, because client libraries take it
// for a success and the user loses text without a word.
package loadtest
