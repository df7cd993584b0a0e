package engine

import "testing"

func TestEngine_VersionsThatCannotBeReadAreOld(t *testing.T) {
	for version, want := range map[string]bool{
		"0.5.22": true, "0.5.23+cu130": true, "0.6": true, "0.31.0+tandem.sim": true, "1.0": true,
		"0.5.21": false, "0.5": false, "0.4.99": false, "main": false, "5": false, "": false,
	} {
		e := &Engine{cfg: Config{Version: version, Connector: ConnectorSGLang}}
		chat := chatRequest{}
		chat.BootstrapHost = []byte(`"host"`)
		if e.dropRooms(&chat); e.isSince(5, 22) != want || (chat.BootstrapHost != nil) != want {
			t.Errorf("%q: %v, room %s", version, e.isSince(5, 22), chat.BootstrapHost)
		}
	}
	for version, want := range map[string]bool{"0.32": true, "0.32.1rc1": true, "0.31.9": false, "main": false} {
		if e := (&Engine{cfg: Config{Version: version}}); e.isVLLM(32) != want {
			t.Errorf("%q: %v", version, !want)
		}
	}
}
