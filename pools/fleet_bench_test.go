package pools

import (
	"fmt"
	"testing"
)

// BenchmarkValidateSpecs2048: budget (2-core VM) 20 ms, linear in the servers.
func BenchmarkValidateSpecs2048(b *testing.B) {
	var specs []Spec
	for i := range 2048 {
		specs = append(specs, spec(fmt.Sprintf("http://10.0.%d.%d:8000", i>>8, i&255), Both))
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := ValidateSpecs(specs); err != nil {
			b.Fatal(err)
		}
	}
}
