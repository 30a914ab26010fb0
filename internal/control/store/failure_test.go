package store

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFullDiskEndsTheStoreAlone: the disk under a running store fills. The
// process goes on, the store says what happened, what was acknowledged is there
// for the next process, and until there is room none could start.
func TestFullDiskEndsTheStoreAlone(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting a small disk needs root")
	}
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=400m"); err != nil {
		t.Fatalf("mounting a small disk: %v", err)
	}
	t.Cleanup(func() { // the lost etcd holds its files until the process ends
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	s, err := Start(t.Context(), Config{DataDir: filepath.Join(disk, "etcd")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	put := func(i int, value []byte) error {
		_, err := s.Client().Put(t.Context(), fmt.Sprintf("/registry/x/%d", i), string(value))
		return err
	}
	if err := put(0, []byte("acknowledged")); err != nil {
		t.Fatal(err)
	}
	filler := filepath.Join(disk, "filler")
	fill(t, filler)
	block := bytes.Repeat([]byte("x"), 1<<20)
	for i := 1; s.Failure() == nil && i < 1000; i++ {
		result := make(chan error, 1)
		go func() { result <- put(i, block) }()
		select {
		case <-result:
		case <-s.Stopped():
		}
	}
	<-s.Stopped()
	if err := s.Failure(); err == nil || !errorSays(err, "no space left on device") {
		t.Errorf("the store failed with %v", err)
	}
	if err := s.Health(t.Context()); err == nil {
		t.Error("a store that failed is healthy")
	}
	var full *NoSpaceError
	if err := CanStart(filepath.Join(disk, "etcd")); !errors.As(err, &full) {
		t.Errorf("a store could start on a full disk: %v", err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := CanStart(filepath.Join(disk, "etcd")); err != nil {
		t.Errorf("with room again: %v", err)
	}
	// Another process has what was acknowledged: here, a copy of the directory,
	// since the lost etcd of this process keeps its locks.
	copied := filepath.Join(t.TempDir(), "etcd")
	if err := os.CopyFS(copied, noSockets{os.DirFS(filepath.Join(disk, "etcd"))}); err != nil {
		t.Fatal(err)
	}
	again, err := Start(t.Context(), Config{DataDir: copied})
	if err != nil {
		t.Fatalf("starting from what is on disk: %v", err)
	}
	defer again.Close()
	got, err := again.Client().Get(t.Context(), "/registry/x/0")
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "acknowledged" {
		t.Errorf("an acknowledged write is lost: %v, %v", got, err)
	}
}

// fill writes until the disk is full.
func fill(t *testing.T, name string) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 1<<20)
	for {
		if _, err := f.Write(block); err != nil {
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
			return
		}
	}
}

func errorSays(err error, text string) bool { return strings.Contains(err.Error(), text) }

// noSockets is a directory without what cannot be copied.
type noSockets struct{ fs.FS }

func (n noSockets) ReadDir(name string) ([]fs.DirEntry, error) {
	list, err := fs.ReadDir(n.FS, name)
	return slices.DeleteFunc(list, func(e fs.DirEntry) bool { return e.Type()&fs.ModeSocket != 0 }), err
}
