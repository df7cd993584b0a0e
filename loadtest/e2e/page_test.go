package e2e

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

var screenshots = flag.String("screenshots", "", "directory for pictures of the live page, after a minute of load")

// TestLivePage: a browser that shows the admin token as a password sees the servers, the matrix, the
// times and the decisions of two gateways that share a Redis, and sees them change while it looks; it
// asks nobody but the one, and its console stays empty. It is readable in the dark and on a phone. A
// gateway that is killed is named, and the page goes on.
func TestLivePage(t *testing.T) {
	f := startEngines(t)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("s3cret"), 0o600); err != nil {
		t.Fatal(err)
	}
	redis := startRedis(t)
	gateway := func(name string) (listen, admin string, p *process.Process) {
		listen, admin = freeAddress(t), freeAddress(t)
		p = start(t, name, "bin/tandem", "serve", "--listen", listen, "--admin", admin, "--admin-token-file", token, "--pairs-first", "--tokens", "approximate",
			"--prefill", strings.Join(f.prefill, ","), "--decode", strings.Join(f.decode, ","), "--redis", redis.addr, "--replica", name)
		waitFor(t, p, name+" to be ready", readyWithin, answers("http://"+admin+"/readyz"))
		return listen, admin, p
	}
	listen, admin, _ := gateway("gateway-0")
	listen2, _, second := gateway("gateway-1")

	b := startBrowser(t, "operator:s3cret")
	b.screen(1400, 1200, false)
	b.call("Page.navigate", map[string]any{"url": "http://" + admin + "/"})
	b.until(`Number(document.body?.dataset.events) >= 1`)
	b.until(`document.querySelector("#answered").innerText == "2 of 2 gateways"`)
	for expression, want := range map[string]any{
		`location.pathname`: "/ui/",
		`document.querySelectorAll("#server-rows tr").length`:   4.0,
		`document.querySelectorAll("#matrix g").length`:         4.0,
		`document.querySelectorAll("figure svg").length`:        5.0,
		`document.querySelector("#decision-rows").innerText`:    "No request was served yet.",
		`document.querySelector("#pair").innerText.slice(0,20)`: "No KV was moved yet.",
		`document.querySelector("#ready").innerText`:            "ready",
	} {
		if got := b.eval(expression); got != want {
			t.Errorf("%s is %v, want %v", expression, got, want)
		}
	}

	// What happens while it looks is there by itself.
	askForTwenty(t, "http://"+listen, f.model, 4)
	askForTwenty(t, "http://"+listen2, f.model, 2)
	b.until(`document.querySelectorAll("#decision-rows tr.choice").length == 6`)
	b.until(`[...document.querySelectorAll("#decision-rows td.by")].map((td) => td.innerText).join(" ") == "gateway-1 gateway-1 gateway-0 gateway-0 gateway-0 gateway-0"`)
	b.until(`document.querySelector("[data-gateway=gateway-1]").innerText.startsWith("gateway-1\tready\t0\t0\t0.0\t0\t")`)
	b.until(`document.querySelector("#times-of").innerText.includes("of 2 gateways")`)
	b.until(`[...document.querySelectorAll("#matrix .cell")].some((c) => c.width.baseVal.value > 0)`)
	b.until(`document.querySelector("#chart-parts").innerText.includes("prefill ")`)
	b.until(`document.querySelector("#model").innerText.includes("test-model")`)
	b.eval(`document.querySelector("#decision-rows tr.choice").click()`)
	b.until(`document.querySelectorAll("#decision-rows .detail .meter").length > 4`)
	b.until(`document.querySelector("#decision-rows .detail").innerText.includes("alternatives, cheapest first")`)
	b.eval(`[...document.querySelectorAll("#matrix g")].find((g) => g.querySelector(".cell").width.baseVal.value > 0).dispatchEvent(new MouseEvent("click", {bubbles: true}))`)
	b.until(`document.querySelector("#pair").innerText.includes("transfers")`)
	if *screenshots != "" {
		picture(t, b, f.model, "http://"+listen, "http://"+listen2)
	}

	// The times of one model are asked for anew.
	b.eval(`{ const m = document.querySelector("#model"); m.value = "test-model"; m.dispatchEvent(new Event("change")) }`)
	waitFor(t, nil, "the page to ask for one model", readyWithin, func() error {
		if asked, _ := b.seen(); !slices.Contains(asked, "http://"+admin+"/ui/events?model=test-model") {
			return fmt.Errorf("it asked for %q", asked)
		}
		return nil
	})

	light := b.eval(`getComputedStyle(document.documentElement).backgroundColor`)
	b.screen(1400, 1200, true)
	if dark := b.eval(`getComputedStyle(document.documentElement).backgroundColor`); dark == light {
		t.Errorf("in the dark the ground is %v too", dark)
	}
	b.screen(360, 740, false)
	b.until(`document.documentElement.scrollWidth <= 360`)

	second.Kill(t)
	b.until(`document.querySelector("#answered").innerText == "1 of 2 gateways"`)
	b.until(`document.querySelector("[data-gateway=gateway-1]").innerText.includes("no answer: ")`)
	asked, failed := b.seen()
	for _, url := range asked {
		if !strings.HasPrefix(url, "http://"+admin+"/") {
			t.Errorf("the page asks for %s", url)
		}
	}
	if len(asked) < 6 || len(failed) > 0 {
		t.Errorf("asked for %q; the console has %q", asked, failed)
	}
}

// askForTwenty asks for answers of twenty tokens to prompts that begin alike.
func askForTwenty(t *testing.T, url, model string, requests int) {
	t.Helper()
	for i := range requests {
		body := fmt.Sprintf(`{"model":%q,"stream":true,"stream_options":{"include_usage":true},"max_tokens":20,"messages":[{"role":"user","content":"%s%d"}]}`,
			model, strings.Repeat("The river rises by a little more each day. ", 40), i%3)
		resp, err := client.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %v", resp.Status, err)
		}
	}
}

// picture takes pictures of the page after a minute of load: light, dark, and on a phone.
func picture(t *testing.T, b *browser, model string, urls ...string) {
	t.Helper()
	b.eval(`document.querySelector("#decision-rows tr.choice[aria-expanded=true]").click()`)
	var clients sync.WaitGroup
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		for i := range 4 {
			clients.Go(func() { askForTwenty(t, urls[i%len(urls)], model, 2) })
		}
		clients.Wait()
	}
	for _, shot := range []struct {
		name          string
		width, height int
		dark          bool
	}{{"live-light", 1200, 1000, false}, {"live-dark", 1200, 1000, true}, {"live-phone", 390, 1100, false}} {
		b.screen(shot.width, shot.height, shot.dark)
		b.until(`Number(document.body?.dataset.events) >= 1`)
		if err := os.WriteFile(filepath.Join(*screenshots, shot.name+".png"), b.screenshot(shot.width, shot.height), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
