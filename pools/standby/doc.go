// Package standby makes servers ready for what they do not serve at the moment: it has
// engines load LoRA adapters and unload them again, and lets engines that share GPUs sleep
// and wake. What requests ask for is kept in package pools, since each choice reads it; this
// package acts on it. cmd starts it with Watch.
package standby
