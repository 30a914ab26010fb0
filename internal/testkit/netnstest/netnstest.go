// Package netnstest gives tests network namespaces of their own.
package netnstest

import (
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netns"
)

// New returns an empty network namespace that goes with the test. Without
// root, which it needs, the test is skipped.
func New(t testing.TB) netns.NsHandle {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root: run as root")
	}
	var h netns.NsHandle
	err := onOwnThread(func() (err error) {
		h, err = netns.New()
		return err
	})
	if err != nil {
		t.Fatalf("making a network namespace: %v", err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

// In runs f on a thread in a namespace. Goroutines that f starts are not in
// it, sockets that f opens stay there.
func In(ns netns.NsHandle, f func() error) error {
	return onOwnThread(func() error {
		if err := netns.Set(ns); err != nil {
			return err
		}
		return f()
	})
}

func onOwnThread(f func() error) error {
	done := make(chan error)
	go func() {
		// The thread is never unlocked, so it ends with the goroutine and
		// nobody else runs in the namespace.
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}
