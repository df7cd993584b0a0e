package requestid

import (
	"testing"

	"github.com/google/uuid"
)

// Ids are UUIDs as others read them, and each is another one.
func TestNew_IsARandomUUID(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		text := New()
		id, err := uuid.Parse(string(text[:]))
		if err != nil || id.Version() != 4 || id.Variant() != uuid.RFC4122 || id.String() != string(text[:]) {
			t.Fatalf("%s: version %d, variant %v, %v", text, id.Version(), id.Variant(), err)
		}
		if seen[id.String()] {
			t.Fatalf("%s twice", id)
		}
		seen[id.String()] = true
	}
}

func TestNew_OneAllocation(t *testing.T) {
	var kept string
	if n := testing.AllocsPerRun(100, func() {
		id := New()
		kept = "req-" + string(id[:])
	}); n != 1 {
		t.Errorf("%v allocations for %s", n, kept)
	}
}
