package ui

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/ui/local"
	"github.com/berth-dev/berth/test/e2e/kit"
)

// chromium is the browser of Debian's package, which hack/install.sh installs.
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if file, err := exec.LookPath(name); err == nil {
			return file
		}
	}
	t.Fatal("no Chromium: install Debian's package chromium (hack/install.sh test does)")
	return ""
}

// browser is a tab of a Chromium of its own, behind a `berth ui` of its own.
type browser struct {
	t      *testing.T
	ctx    context.Context
	origin string

	mu       sync.Mutex
	problems []string // errors of the console
	foreign  []string // requests to elsewhere
}

// browse opens a browser that has logged in as the user of cfg.
func browse(t *testing.T, cfg *rest.Config) *browser {
	t.Helper()
	p, err := local.New(cfg, 0, slog.New(slog.NewTextHandler(t.Output(), nil)))
	kit.Must(t, err)
	life, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(life) }()
	t.Cleanup(func() {
		stop()
		kit.Must(t, <-done)
	})
	options := slices.Concat(chromedp.DefaultExecAllocatorOptions[:], []chromedp.ExecAllocatorOption{chromedp.ExecPath(chromium(t)),
		chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()), chromedp.Flag("disable-component-update", true)})
	alloc, cancelAlloc := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancelAlloc)
	ctx, cancel := chromedp.NewContext(alloc)
	t.Cleanup(cancel)
	ctx, cancelTime := context.WithTimeout(ctx, kit.Timeout)
	t.Cleanup(cancelTime)
	at, err := url.Parse(p.Address())
	kit.Must(t, err)
	b := &browser{t: t, ctx: ctx, origin: "http://" + at.Host}
	kit.Must(t, chromedp.Listen(ctx, b.heard))
	call(b, network.Enable, network.EnableParams{})
	call(b, log.Enable, cdp.Empty{})
	call(b, cdpruntime.Enable, cdp.Empty{})
	b.size(1280, 900)
	b.run(chromedp.Navigate(p.Address()))
	b.until(live)
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.problems) > 0 {
			t.Errorf("the console has errors:\n%s", strings.Join(b.problems, "\n"))
		}
		if len(b.foreign) > 0 {
			t.Errorf("requests to elsewhere: %v", b.foreign)
		}
	})
	return b
}

// heard keeps what the browser complains of and where it sends requests.
func (b *browser) heard(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			b.problems = append(b.problems, e.Entry.Text+" "+e.Entry.URL)
		}
	case *cdpruntime.EventExceptionThrown:
		b.problems = append(b.problems, e.ExceptionDetails.Text+" "+e.ExceptionDetails.URL)
	case *cdpruntime.EventConsoleAPICalled:
		if e.Type == cdpruntime.ConsoleAPICalledTypeError || e.Type == cdpruntime.ConsoleAPICalledTypeWarning {
			b.problems = append(b.problems, fmt.Sprintf("console.%s", e.Type))
		}
	case *network.EventRequestWillBeSent:
		u := e.Request.URL
		if !strings.HasPrefix(u, b.origin+"/") && !strings.HasPrefix(u, "data:") {
			b.foreign = append(b.foreign, u)
		}
	}
}

func (b *browser) run(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, actions...); err != nil {
		b.t.Fatalf("in the browser: %v", err)
	}
}

// call performs a command of the browser's protocol.
func call[P, R any](b *browser, cmd cdp.Command[P, R], params P) R {
	b.t.Helper()
	out, err := chromedp.Call(b.ctx, cmd, params)
	if err != nil {
		b.t.Fatalf("in the browser: %s: %v", cmd.Method, err)
	}
	return out
}

// size is the size of the window in CSS pixels.
func (b *browser) size(width, height int64) {
	b.t.Helper()
	call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1,
		Mobile: width < 600})
}

// theme is what the system prefers: light or dark.
func (b *browser) theme(name string) {
	b.t.Helper()
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: name}}})
}

// live holds once the page gets updates.
const live = `document.querySelector("#live.on") !== null`

// open goes to a path below /ui/ and waits until it is live.
func (b *browser) open(path string) {
	b.t.Helper()
	b.run(chromedp.Navigate(b.origin + "/ui/" + path))
	b.until(live)
}

// text is what a person reads in the content.
func (b *browser) text() string {
	b.t.Helper()
	return eval[string](b, `document.getElementById("main").innerText`)
}

// eval evaluates an expression, or waits for the promise that it is.
func eval[T any](b *browser, expression string) T {
	b.t.Helper()
	out, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatalf("in the browser: %s: %v", expression, err)
	}
	return out
}

// until waits until an expression holds; the page tells of its changes. A page
// that goes elsewhere meanwhile is asked again.
func (b *browser) until(expression string) {
	b.t.Helper()
	wait := fmt.Sprintf(`new Promise(done => {
		const holds = () => { if (%s) { seen.disconnect(); done(true); } };
		const seen = new MutationObserver(holds);
		seen.observe(document, {subtree: true, childList: true, characterData: true, attributes: true});
		setTimeout(() => { seen.disconnect(); done(false); }, 1000);
		holds();
	})`, expression)
	for {
		held, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](wait, chromedp.EvalAwaitPromise))
		if held {
			return
		}
		if b.ctx.Err() != nil {
			b.t.Fatalf("in the browser: %s does not come true: %v\n%s", expression, err, b.problemsNow())
		}
	}
}

func (b *browser) problemsNow() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.problems, "\n")
}

// shows requires words of the content.
func (b *browser) shows(words ...string) {
	b.t.Helper()
	text := b.text()
	for _, w := range words {
		if !strings.Contains(text, w) {
			b.t.Errorf("%q is not shown in:\n%s", w, text)
		}
	}
}

// hides refuses words anywhere in the document.
func (b *browser) hides(words ...string) {
	b.t.Helper()
	source := eval[string](b, `document.documentElement.outerHTML`)
	for _, w := range words {
		if strings.Contains(source, w) {
			b.t.Errorf("%q is in the page", w)
		}
	}
}

// picture keeps a screenshot where BERTH_UI_PICTURES says.
func (b *browser) picture(name string, full bool) {
	b.t.Helper()
	dir := os.Getenv("BERTH_UI_PICTURES")
	if dir == "" {
		return
	}
	png := call(b, page.CaptureScreenshot, page.CaptureScreenshotParams{CaptureBeyondViewport: &full}).Data
	kit.Must(b.t, os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644))
}
