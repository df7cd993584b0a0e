//go:build race

package gateway

const spoilsReleased = true
