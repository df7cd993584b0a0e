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

// A duration below 0, or a text that is none, is refused with what is wanted; 0 is a value.
func TestParseDurations_RefusesWhatIsNoDuration(t *testing.T) {
	for entry, valid := range map[string]bool{"2s": true, "0s": true, "big=5s": true, "-1s": false, "big=-1s": false, "2": false, "soon": false, "big=": false} {
		_, err := ParseDurations("ttft-slo", []string{entry})
		if (err == nil) != valid || err != nil && !strings.Contains(err.Error(), "want a duration such as 2s") {
			t.Errorf("%s: %v", entry, err)
		}
	}
	if none, err := ParseDurations("ttft-slo", nil); err != nil || none.Of("big", "") != 0 {
		t.Errorf("without entries it is %v, %v", none.Of("big", ""), err)
	}
}
