// Package top shows a gateway in a terminal while it works: what its live page shows, as lines.
package top
