package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLoad runs a modprobe of its own, which brings a file.
func TestLoad(t *testing.T) {
	dir := t.TempDir()
	brings := filepath.Join(dir, "brings")
	modprobe := func(script string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "modprobe"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	modprobe("echo no such module >&2; exit 1")
	if loaded, err := load(t.Context(), "m", brings); loaded || err == nil || !strings.Contains(err.Error(), "module m") ||
		!strings.Contains(err.Error(), "no such module") {
		t.Errorf("a module that is not there: %t, %v", loaded, err)
	}
	modprobe(`[ "$1" = m ] && echo >` + brings)
	if loaded, err := load(t.Context(), "m", brings); !loaded || err != nil {
		t.Errorf("not loaded: %t, %v", loaded, err)
	}
	modprobe("exit 1") // not asked again
	if loaded, err := load(t.Context(), "m", brings); loaded || err != nil {
		t.Errorf("loaded twice: %t, %v", loaded, err)
	}
}
