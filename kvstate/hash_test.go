package kvstate

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"testing"
)

func randomTokens(r *rand.Rand, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = r.Uint32N(152_000)
	}
	return tokens
}

func TestHash_DependsOnAllThatTheKVDependsOn(t *testing.T) {
	seed := NewSeed("secret")
	tokens := randomTokens(rand.New(rand.NewPCG(1, 1)), 64)
	changed := func(at int) []uint32 {
		c := append([]uint32(nil), tokens...)
		c[at]++
		return c
	}
	swapped := append([]uint32(nil), tokens...)
	swapped[0], swapped[4] = swapped[4], swapped[0]
	last := func(seed *Seed, model string, size int, adapter string, tokens []uint32, extra uint64) Hash {
		chain := seed.Chain(nil, seed.Root(model, size, adapter), tokens, size, extra)
		return chain[len(chain)-1]
	}
	seen := map[Hash]string{}
	for name, h := range map[string]Hash{
		"plain":               last(seed, "m", 16, "", tokens, 0),
		"model":               last(seed, "n", 16, "", tokens, 0),
		"block size":          last(seed, "m", 32, "", tokens, 0),
		"odd block size":      last(seed, "m", 20, "", tokens, 0),
		"adapter":             last(seed, "m", 16, "a", tokens, 0),
		"adapter ends model":  last(seed, "ma", 16, "", tokens, 0),
		"salt":                last(seed, "m", 16, "", tokens, seed.Extra("a")),
		"two salts":           last(seed, "m", 16, "", tokens, seed.Extra("a")+seed.Extra("b")),
		"longer salt":         last(seed, "m", 16, "", tokens, seed.Extra("a\x00")),
		"first token":         last(seed, "m", 16, "", changed(0), 0),
		"last token":          last(seed, "m", 16, "", changed(63), 0),
		"order of tokens":     last(seed, "m", 16, "", swapped, 0),
		"secret":              last(NewSeed("other"), "m", 16, "", tokens, 0),
		"parent of the block": last(seed, "m", 16, "", tokens[16:], 0),
	} {
		if other, ok := seen[h]; ok {
			t.Errorf("%s and %s have the same hash", name, other)
		}
		seen[h] = name
	}
	if a, b := last(seed, "m", 16, "", tokens, 0), last(NewSeed("secret"), "m", 16, "", tokens, 0); a != b {
		t.Errorf("the same secret gives %x and %x", a, b)
	}
}

// Shards and slots are taken from the upper bits: they have to be spread evenly even
// for tokens that differ little.
func TestHash_UpperBitsAreEven(t *testing.T) {
	seed := NewSeed("")
	root := seed.Root("m", 16, "")
	const n, cells = 1 << 16, 256
	var upper, lower [cells]int
	seen := map[Hash]bool{}
	tokens := make([]uint32, 16)
	for i := range n {
		tokens[i%16]++
		h := seed.Block(root, tokens, 0)
		seen[h] = true
		upper[h>>56]++
		lower[h&255]++
	}
	if len(seen) != n {
		t.Errorf("%d hashes of %d blocks", len(seen), n)
	}
	for name, counts := range map[string][cells]int{"upper": upper, "lower": lower} {
		chi2 := 0.0
		for _, c := range counts {
			d := float64(c) - n/cells
			chi2 += d * d / (n / cells)
		}
		if chi2 > 375 { // 255 degrees of freedom: beyond this once in a million
			t.Errorf("%s byte: chi-squared %.0f", name, chi2)
		}
	}
}

// BenchmarkHash: a prompt of 16k tokens. Budget: 10 us. Beside it, chained in the same way
// over 16 tokens: SHA-256, and maphash, whose seeds do not leave the process.
func BenchmarkHash(b *testing.B) {
	seed := NewSeed("secret")
	tokens := randomTokens(rand.New(rand.NewPCG(1, 1)), 16_000)
	for _, size := range []int{16, 32, 64} {
		b.Run(fmt.Sprintf("block=%d", size), func(b *testing.B) {
			root := seed.Root("m", size, "")
			var chain []Hash
			b.ReportAllocs()
			for b.Loop() {
				chain = seed.Chain(chain[:0], root, tokens, size, 0)
			}
		})
	}
	overBytes := func(b *testing.B, sum func(block []byte) uint64) {
		block := make([]byte, 8+4*16)
		for b.Loop() {
			parent := uint64(1)
			for from := 0; from < len(tokens); from += 16 {
				binary.LittleEndian.PutUint64(block, parent)
				for i, token := range tokens[from : from+16] {
					binary.LittleEndian.PutUint32(block[8+4*i:], token)
				}
				parent = sum(block)
			}
		}
	}
	b.Run("sha256", func(b *testing.B) {
		overBytes(b, func(block []byte) uint64 {
			digest := sha256.Sum256(block)
			return binary.LittleEndian.Uint64(digest[:])
		})
	})
	b.Run("maphash", func(b *testing.B) {
		seed := maphash.MakeSeed()
		overBytes(b, func(block []byte) uint64 { return maphash.Bytes(seed, block) })
	})
}
