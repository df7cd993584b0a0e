// Package spans says what the trace of a request tells: which steps it took, which servers were
// chosen and at which price, what each leg came to, and when its first token was there beside when
// it was predicted to be. It knows no request and no server: pd and gateway call it with values.
//
// The span of the request has the attributes of OpenTelemetry's conventions for generative AI where
// they have one (v1.41.0, gen_ai.*: the last version of the main conventions that has them; they have
// moved to a repository of their own since, and are in development there). Legs have none: a
// dashboard that adds up gen_ai.usage.* would count their tokens twice. Everything else is tandem.*,
// with its unit in the name. No text of a prompt or an answer, and no key, is an attribute.
//
// Of a request that a share leaves out nothing is recorded. It and its legs have spans without content
// all the same, whose ids engines get; nothing else is allocated for it. Without a collector (a
// noop.Tracer) there are no spans: engines get the client's trace as it came, or none.
package spans
