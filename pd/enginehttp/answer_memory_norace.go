//go:build !race

package enginehttp

// spoilsReleased says that the memory of answers is overwritten when it comes back, of short ones too. All tests with the
// race detector show so that nothing reads it still: that would be a data race, and nonsense.
const spoilsReleased = false
