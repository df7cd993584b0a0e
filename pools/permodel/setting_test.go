package permodel

import (
	"strings"
	"testing"
	"time"
)

func TestSetting_TheNearestSettingCounts(t *testing.T) {
	p, err := Parse("ttft-slo", []string{"big=5s", "sql=1s", "2s", "meta/a=b=9s", "free=0s"}, time.Minute, time.ParseDuration)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name, model, base string
		want              time.Duration
	}{
		{"a model of its own", "big", "big", 5 * time.Second},
		{"an adapter by its base", "law", "big", 5 * time.Second},
		{"an adapter of its own", "sql", "big", time.Second},
		{"a model that is not named", "small", "small", 2 * time.Second},
		{"one whose name has a =", "meta/a=b", "meta/a=b", 9 * time.Second},
		{"one that is freed of it", "free", "free", 0},
	} {
		if got := p.Of(x.model, x.base); got != x.want {
			t.Errorf("%s: %v, want %v", x.name, got, x.want)
		}
	}
	if p, err = Parse("ttft-slo", []string{"big=5s"}, time.Minute, time.ParseDuration); err != nil || p.Of("small", "small") != time.Minute {
		t.Errorf("%+v, %v", p, err)
	}
	var zero Setting[time.Duration]
	if got := zero.Of("big", "big"); got != 0 {
		t.Errorf("the zero value says %v", got)
	}
}

func TestSetting_Mistakes(t *testing.T) {
	for entries, want := range map[string]string{
		"big=soon":      `ttft-slo "big=soon"`,
		"":              "duration",
		"=2s":           "a model's name",
		"2s,3s":         "for all models already",
		"big=2s,big=3s": "each model once",
	} {
		if _, err := Parse("ttft-slo", strings.Split(entries, ","), 0, time.ParseDuration); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", entries, err)
		}
	}
}
