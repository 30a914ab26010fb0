package local

import (
	"context"
	"errors"
	"fmt"
	"html/template"
	"os"
	"os/exec"
	"path/filepath"
)

// browserPage sends the browser on. The address with its token must not stand on
// a command line, which every user of the host can read; so the browser is
// started with a file that only its user can.
var browserPage = template.Must(template.New("").Parse(`<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">` +
	`<meta http-equiv="refresh" content="0; url={{.}}"><title>berth</title><p><a href="{{.}}">Open the status page</a></p>
`))

// ErrNoBrowser means that this session has no desktop.
var ErrNoBrowser = errors.New("no desktop")

// Open starts the user's browser at an address. remove deletes the file that it
// was started with.
func Open(ctx context.Context, address string) (remove func(), err error) {
	if os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
		return nil, ErrNoBrowser
	}
	opener, err := exec.LookPath("xdg-open")
	if err != nil {
		return nil, ErrNoBrowser
	}
	dir, err := os.MkdirTemp("", "berth-ui") // 0700
	if err != nil {
		return nil, fmt.Errorf("making a page for the browser: %w", err)
	}
	remove = func() { os.RemoveAll(dir) }
	file := filepath.Join(dir, "open.html")
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err == nil {
		err = errors.Join(browserPage.Execute(f, address), f.Close())
	}
	if err == nil {
		err = exec.CommandContext(ctx, opener, file).Run()
	}
	if err != nil {
		remove()
		return nil, fmt.Errorf("starting the browser: %w", err)
	}
	return remove, nil
}
