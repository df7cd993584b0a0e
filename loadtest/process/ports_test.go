package process

import "testing"

// Tests that run at once ask for ports, and listen on them later: none gets one of another's.
func TestFreeAddresses_NoneIsGivenTwice(t *testing.T) {
	seen := make(map[string]bool)
	for range 200 { // drawn anew each time, two of 2,000 would be alike nearly surely
		addrs, err := FreeAddresses(10)
		if err != nil {
			t.Fatal(err)
		}
		for _, addr := range addrs {
			if seen[addr] {
				t.Fatalf("%s is given twice", addr)
			}
			seen[addr] = true
		}
	}
}
