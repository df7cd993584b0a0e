package share

import "testing"

func TestClassOf_BordersOfLengths(t *testing.T) {
	for _, of := range []struct {
		prompt, output int
		want           Class
	}{
		{-1, 0, 0}, {0, 0, 0}, {1023, 511, 0}, {1024, 1, 1}, {2047, 1, 1}, {2048, 1, 2}, {65_535, 1, 6}, {65_536, 1, 7},
		{1 << 40, 1, 7}, {0, 512, 8}, {12_000, 4000, 12}, {1 << 40, 1 << 40, Classes - 1},
	} {
		if got := ClassOf(of.prompt, of.output); got != of.want {
			t.Errorf("prompt %d, answer %d: class %d, want %d", of.prompt, of.output, got, of.want)
		}
	}
}

func TestColumn_OfNothing(t *testing.T) {
	var none *Table
	if some := (&Table{Variants: []string{"a", "b"}}); none.Column("a") != -1 || some.Column("c") != -1 || some.Column("b") != 1 {
		t.Errorf("%d, %d, %d", none.Column("a"), some.Column("c"), some.Column("b"))
	}
}
