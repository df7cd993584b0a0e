//go:build race

package enginehttp

const spoilsReleased = true
