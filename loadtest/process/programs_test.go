package process

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFind_TheGatewayStandsBesideTheLab(t *testing.T) {
	lab := filepath.Join(t.TempDir(), "tandem-lab")
	if _, err := beside(lab); err == nil || !strings.Contains(err.Error(), "make build") {
		t.Errorf("without it: %v", err)
	}
	gateway := filepath.Join(filepath.Dir(lab), "tandem")
	if err := os.WriteFile(gateway, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := beside(lab); err != nil || got != (Programs{Gateway: gateway, Engine: lab}) {
		t.Errorf("%+v, %v", got, err)
	}
}
