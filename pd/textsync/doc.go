// Package textsync tells replicas that share a Redis what each of them sent to servers, for prompts
// that are known by their text alone (pd/senttext): a prompt goes where another replica sent its
// beginning. No request waits for it; without Redis each replica knows its own.
package textsync
