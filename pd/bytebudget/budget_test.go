package bytebudget

import "testing"

// One text of a tenant may take all that is left, several what they leave free.
func TestBudget_SharesOfTenants(t *testing.T) {
	type text struct {
		tenant string
		has    int64
	}
	budget := New(100)
	eve, eve2, ada, ada2, none := &text{tenant: "eve"}, &text{tenant: "eve"}, &text{tenant: "ada"}, &text{tenant: "ada"}, &text{}
	for i, x := range []struct {
		of   *text
		size int64 // 0: it is given back
		fits bool
		now  int64
	}{
		{eve, 60, true, 60}, {eve, 101, false, 60}, {eve2, 1, false, 60}, {eve, 90, true, 90}, {ada, 10, true, 100}, {eve, 0, true, 10},
		{eve, 30, true, 40}, {eve2, 16, false, 40}, {eve2, 15, true, 55}, {ada2, 18, false, 55}, {ada2, 17, true, 72}, {none, 28, true, 100},
		{none, 0, true, 72}, {eve, 0, true, 42}, {eve2, 0, true, 27}, {ada, 0, true, 17}, {ada2, 0, true, 0},
	} {
		fits := true
		switch {
		case x.size == 0:
			budget.GiveBack(x.of.tenant, x.of.has)
			x.of.has = 0
		case budget.Take(x.of.tenant, x.of.has, x.size-x.of.has):
			x.of.has = x.size
		default:
			fits = false
		}
		if now := budget.Taken(); fits != x.fits || now != x.now {
			t.Errorf("step %d: %v, %d taken; want %v, %d", i, fits, now, x.fits, x.now)
		}
	}
	if len(budget.ofTenants) > 0 {
		t.Errorf("tenants that have nothing are kept: %v", budget.ofTenants)
	}
}
