// Package standby makes servers ready for what they do not serve at the moment: it has
// engines load LoRA adapters and unload them again, and lets engines that share GPUs sleep
// and wake. What requests ask for is kept by the server (package pools), which is read for
// each choice; here is what acts on it. cmd starts it with Watch.
package standby
