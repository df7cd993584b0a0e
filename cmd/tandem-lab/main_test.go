package main

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/tandem-gateway/tandem/cmd/internal/program"
	"github.com/tandem-gateway/tandem/cmd/internal/serving"
	"github.com/tandem-gateway/tandem/loadtest/process"
)

func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) { // a process that a test started, see testPrograms
	case "tandem":
		program.Main(program.New("tandem", "", serving.Command()))
		return
	case "tandem-lab":
		main()
		return
	}
	flag.Parse()
	goleak.VerifyTestMain(m,
		// fasthttp keeps two kinds of sleepers that end late or never, go-redis one that sees
		// within a second that its pool is closed.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"),
		// toxiproxy may leave the pipe of a connection that it cut.
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*ToxicStub).Run"),
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2.(*ToxicLink).read"),
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2.(*ToxicLink).write"),
	)
}

// testPrograms are the two programs, for tests that start them as processes: this very
// binary, which is each of them when it goes by its name. To build them would take minutes
// where nothing is built yet.
func testPrograms(t *testing.T) process.Programs {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p := process.Programs{Gateway: filepath.Join(dir, "tandem"), Engine: filepath.Join(dir, "tandem-lab")}
	for _, path := range []string{p.Gateway, p.Engine} {
		if err := os.Symlink(self, path); err != nil {
			t.Fatal(err)
		}
	}
	return p
}
