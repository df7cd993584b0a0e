// Package history keeps what requests took over the last quarter of an hour, by model and in steps
// of ten seconds: the parts of the time to the first token, the gaps between tokens, and how much
// of prompts was cached. pd records it; the live page and "tandem top" show it. It is bounded: in
// time by its steps, in bytes by the number of models (some 70 KB each).
package history
