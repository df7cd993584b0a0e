package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// browser is a page of a headless Chromium, driven by the Chrome DevTools Protocol. All that the page
// asks for passes by here.
type browser struct {
	t    *testing.T
	conn *websocket.Conn
	user string // what it types where a password is asked for, as NAME:PASSWORD

	mu     sync.Mutex // guards what follows
	next   int
	waits  map[int]chan message
	asked  []string // URLs
	errors []string // of the console, and exceptions
}

// stopsWithin is what Chromium gets to say that it ends.
const stopsWithin = 10 * time.Second

// message is one of the protocol, either way.
type message struct {
	ID     int             `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// chromium is the program, under one of the names that Debian gives it.
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium-headless-shell", "chromium"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatal("there is no Chromium: .ci/deps e2e installs it")
	return ""
}

// startBrowser starts a Chromium with an empty page.
func startBrowser(t *testing.T, user string) *browser {
	t.Helper()
	address := freeAddress(t)
	// Without a sandbox, as root has none: it sees nothing but this gateway.
	p := start(t, "chromium", chromium(t), "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port="+portOf(t, address),
		"--user-data-dir="+t.TempDir(), "--no-first-run", "about:blank")
	var targets []struct {
		Type string `json:"type"`
		URL  string `json:"webSocketDebuggerUrl"`
	}
	waitFor(t, p, "Chromium to open a page", readyWithin, func() error {
		if err := getJSON("http://"+address+"/json", &targets); err != nil {
			return err
		}
		if len(targets) == 0 || targets[0].Type != "page" {
			return fmt.Errorf("it has %+v", targets)
		}
		return nil
	})
	conn, resp, err := websocket.Dial(t.Context(), targets[0].URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Body != nil {
		_ = resp.Body.Close()
	}
	conn.SetReadLimit(64 << 20) // screenshots
	b := &browser{t: t, conn: conn, user: user, waits: make(map[int]chan message)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.listen()
	}()
	t.Cleanup(func() {
		select { // its processes end with it
		case <-b.send("Browser.close", map[string]any{}):
		case <-time.After(stopsWithin):
		}
		_ = conn.CloseNow()
		<-ended
	})
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		b.call(domain+".enable", nil)
	}
	b.call("Fetch.enable", map[string]any{"handleAuthRequests": true})
	return b
}

// listen reads what Chromium says until the connection ends.
func (b *browser) listen() {
	for {
		_, data, err := b.conn.Read(context.Background())
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(data, &m) != nil {
			continue
		}
		if m.ID == 0 {
			b.event(m)
			continue
		}
		b.mu.Lock()
		wait := b.waits[m.ID]
		delete(b.waits, m.ID)
		b.mu.Unlock()
		if wait != nil {
			wait <- m
		}
	}
}

// event lets requests pass, types the password, and keeps what went wrong.
func (b *browser) event(m message) {
	var p struct {
		RequestID string `json:"requestId"`
		Request   struct {
			URL string `json:"url"`
		} `json:"request"`
		Entry struct {
			Level, Text, URL string
		} `json:"entry"`
		Type string          `json:"type"`
		Args json.RawMessage `json:"args"`
	}
	_ = json.Unmarshal(m.Params, &p)
	switch m.Method {
	case "Fetch.requestPaused":
		b.note(&b.asked, p.Request.URL)
		b.send("Fetch.continueRequest", map[string]any{"requestId": p.RequestID})
	case "Fetch.authRequired":
		name, password, _ := strings.Cut(b.user, ":")
		b.send("Fetch.continueWithAuth", map[string]any{"requestId": p.RequestID,
			"authChallengeResponse": map[string]any{"response": "ProvideCredentials", "username": name, "password": password}})
	case "Runtime.exceptionThrown":
		b.note(&b.errors, string(m.Params))
	case "Log.entryAdded":
		if p.Entry.Level == "error" || p.Entry.Level == "warning" {
			b.note(&b.errors, p.Entry.Text+" "+p.Entry.URL)
		}
	case "Runtime.consoleAPICalled":
		if p.Type == "error" || p.Type == "warning" || p.Type == "assert" {
			b.note(&b.errors, string(p.Args))
		}
	}
}

func (b *browser) note(list *[]string, what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	*list = append(*list, what)
}

// seen are the URLs that were asked for, and what went wrong.
func (b *browser) seen() (asked, failed []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.asked...), append([]string(nil), b.errors...)
}

// send sends a call, and returns where its answer comes.
func (b *browser) send(method string, params any) <-chan message {
	wait := make(chan message, 1)
	b.mu.Lock()
	b.next++
	id := b.next
	b.waits[id] = wait
	b.mu.Unlock()
	raw, err := json.Marshal(params)
	if err == nil {
		raw, err = json.Marshal(message{ID: id, Method: method, Params: raw})
	}
	if err == nil {
		err = b.conn.Write(context.Background(), websocket.MessageText, raw)
	}
	if err != nil {
		b.note(&b.errors, err.Error())
	}
	return wait
}

// call sends a call and waits for its answer.
func (b *browser) call(method string, params map[string]any) json.RawMessage {
	b.t.Helper()
	if params == nil {
		params = map[string]any{}
	}
	select {
	case m := <-b.send(method, params):
		if m.Error != nil {
			b.t.Fatalf("%s: %s", method, m.Error.Message)
		}
		return m.Result
	case <-time.After(readyWithin):
		b.t.Fatalf("%s: no answer", method)
	}
	return nil
}

// eval returns the value of an expression on the page.
func (b *browser) eval(expression string) any {
	b.t.Helper()
	var got struct {
		Result struct {
			Value any `json:"value"`
		} `json:"result"`
		Exception *struct {
			Text string `json:"text"`
		} `json:"exceptionDetails"`
	}
	if err := json.Unmarshal(b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true}), &got); err != nil {
		b.t.Fatal(err)
	}
	if got.Exception != nil {
		b.t.Fatalf("%s: %s", expression, got.Exception.Text)
	}
	return got.Result.Value
}

// until waits for an expression to be true.
func (b *browser) until(expression string) {
	b.t.Helper()
	waitFor(b.t, nil, expression, readyWithin, func() error {
		if b.eval(expression) != true {
			return errors.New("it is not so")
		}
		return nil
	})
}

// screen sets the size of the window, and whether the user prefers dark.
func (b *browser) screen(width, height int, dark bool) {
	b.t.Helper()
	scheme := map[bool]string{true: "dark", false: "light"}[dark]
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}})
}

// screenshot is the page as a PNG, from its top, so many pixels high.
func (b *browser) screenshot(width, height int) []byte {
	b.t.Helper()
	var got struct {
		Data string `json:"data"`
	}
	raw := b.call("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true,
		"clip": map[string]any{"x": 0, "y": 0, "width": width, "height": height, "scale": 1}})
	if err := json.Unmarshal(raw, &got); err != nil {
		b.t.Fatal(err)
	}
	image, err := base64.StdEncoding.DecodeString(got.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	return image
}
