package store

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-dev/berth/internal/testkit/faultydisk"
)

// TestFailingDiskEndsTheStoreAlone: the device under a running store answers
// with I/O errors. The process goes on, the store says what happened, none
// could start until the device is well, and what was acknowledged is there.
func TestFailingDiskEndsTheStoreAlone(t *testing.T) {
	mount := t.TempDir()
	disk := faultydisk.New(t, mount, 650)
	dir := filepath.Join(mount, "etcd")
	s, err := Start(t.Context(), Config{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	put := func(i int, value string) error {
		_, err := s.Client().Put(t.Context(), fmt.Sprintf("/registry/x/%d", i), value)
		return err
	}
	if err := put(0, "acknowledged"); err != nil {
		t.Fatal(err)
	}
	disk.Break()
	for i := 1; s.Failure() == nil && i < 100000; i++ {
		result := make(chan error, 1)
		go func() { result <- put(i, "x") }()
		select {
		case <-result:
		case <-s.Stopped():
		}
	}
	<-s.Stopped()
	if err := s.Failure(); err == nil || !errorSays(err, "input/output error") {
		t.Errorf("the store failed with %v", err)
	}
	if err := s.Health(t.Context()); err == nil {
		t.Error("a store that failed is healthy")
	}
	if err := CanStart(dir); err == nil {
		t.Error("a store could start on a disk that fails")
	}
	disk.Mend()
	if err := CanStart(dir); err != nil {
		t.Errorf("on a disk that is well again: %v", err)
	}
	// Another process has what was acknowledged; see TestFullDiskEndsTheStoreAlone.
	copied := filepath.Join(t.TempDir(), "etcd")
	if err := os.CopyFS(copied, noSockets{os.DirFS(dir)}); err != nil {
		t.Fatal(err)
	}
	again, err := Start(t.Context(), Config{DataDir: copied})
	if err != nil {
		t.Fatalf("starting from what is on the disk: %v", err)
	}
	defer again.Close()
	got, err := again.Client().Get(t.Context(), "/registry/x/0")
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "acknowledged" {
		t.Errorf("an acknowledged write is lost: %v, %v", got, err)
	}
}
