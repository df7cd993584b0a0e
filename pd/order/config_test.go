package order

import (
	"testing"
	"time"
)

func TestConfig_Validate(t *testing.T) {
	for _, c := range []Config{{}, DefaultConfig(), {OverdueShare: 1}, {Patience: time.Second}} {
		if err := c.Validate(); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for _, c := range []Config{
		{Ahead: -1}, {AheadOnDecode: -1}, {WaitMargin: -0.1}, {Ageing: -0.1}, {OverdueAfter: -1}, {OverdueFactor: -1},
		{OverdueShare: -0.01}, {OverdueShare: 1.01}, {Patience: -1},
	} {
		if c.Validate() == nil {
			t.Errorf("%+v is taken", c)
		}
	}
}
