package pd

// share notes which hardware the plan of a model gives which requests, where there is one.
func (ch *Chooser) share(v *snapshot) {
	if ch.Shares == nil {
		return
	}
	if v.field.Shares = ch.Shares(v.base); v.field.Shares == nil {
		return
	}
	for i, s := range v.prefill {
		v.field.Prefill[i].Kind = v.field.Shares.Column(s.Variant) + 1
	}
}
