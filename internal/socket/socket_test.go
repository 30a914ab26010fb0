package socket

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestListenReplacesWhatWasLeft(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	left, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	left.(*net.UnixListener).SetUnlinkOnClose(false)
	left.Close()
	l, err := Listen("control", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v (%v), want only its owner's", info, err)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

func TestListenNamesTheSocket(t *testing.T) {
	_, err := Listen("control", filepath.Join(t.TempDir(), "none", "s"))
	if err == nil || !strings.Contains(err.Error(), "opening the control socket") {
		t.Errorf("got %v", err)
	}
}
