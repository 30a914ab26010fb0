package volume

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A reader that opens "..data" once sees one version: every file of it, whole,
// until it is replaced; never a file of another version, never half of one.
func TestReadersNeverSeeHalfAnUpdate(t *testing.T) {
	dir := t.TempDir()
	w := writer{dir: dir, now: time.Now}
	names := []string{"a", "b", "deep/c", "deep/er/d"}
	version := func(n int) payload {
		p := payload{}
		for _, name := range names {
			p[name] = file{data: bytes.Repeat(fmt.Appendf(nil, "%06d\n", n), 2000), mode: 0o644}
		}
		// Names that come and go.
		p[fmt.Sprint("only-", n%3)] = file{data: []byte("x"), mode: 0o600}
		return p
	}
	if _, err := w.write(version(0)); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var looks, whole [2]int
	for i := range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				looks[i]++
				if err := lookAtOnce(dir, names); errors.Is(err, fs.ErrNotExist) {
					continue // replaced meanwhile: a reader looks again
				} else if err != nil {
					t.Error(err)
					return
				}
				whole[i]++
			}
		})
	}
	for n := 1; n <= 300; n++ {
		if _, err := w.write(version(n)); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	wg.Wait()
	if whole[0]+whole[1] == 0 {
		t.Errorf("no look of %v was at a whole version", looks)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 6 { // ..data, its directory, a, b, deep, only-0
		t.Errorf("left %v, %v", entries, err)
	}
}

// lookAtOnce reads all names below one opened version.
func lookAtOnce(dir string, names []string) error {
	fd, err := unix.Open(filepath.Join(dir, dataDir), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	at := os.NewFile(uintptr(fd), dataDir)
	defer at.Close()
	var first []byte
	for _, name := range names {
		got, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d/%s", fd, name))
		if err != nil {
			return err
		}
		if first == nil {
			first = got
		}
		if !bytes.Equal(got, first) || len(got) != 14000 || !bytes.Equal(got, bytes.Repeat(got[:7], 2000)) {
			return fmt.Errorf("%s has %d bytes of version %q beside version %q", name, len(got), got[:min(7, len(got))], first[:7])
		}
	}
	return nil
}

// A version that does not fit leaves the old one, and nothing that takes up
// room; the next one that fits goes in.
func TestFullDiskKeepsTheOldContents(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	w := writer{dir: dir, now: time.Now}
	put := func(size int, fill string) error {
		_, err := w.write(payload{"f": {data: bytes.Repeat([]byte(fill), size), mode: 0o644}, "other/g": {data: []byte(fill), mode: 0o644}})
		return err
	}
	if err := put(1000, "1"); err != nil {
		t.Fatal(err)
	}
	for range 20 { // more than the disk could hold if each left something
		if err := put(400_000, "2"); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("400 kB on 256 kB: %v", err)
		}
	}
	if got := readFile(t, dir, "f"); got != strings.Repeat("1", 1000) {
		t.Errorf("the old contents are gone: %d bytes", len(got))
	}
	// As after a kill in the middle of a write.
	if err := os.WriteFile(filepath.Join(mkdir(t, dir, "..2020_01_01_00_00_00.dead"), "f"), make([]byte, 200_000), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := put(100_000, "3"); err != nil {
		t.Fatalf("what a kill left was in the way: %v", err)
	}
	if got := readFile(t, dir, "other", "g"); got != "3" {
		t.Errorf("contents %q", got)
	}
}

func mkdir(t *testing.T, elements ...string) string {
	t.Helper()
	dir := filepath.Join(elements...)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// FuzzPayload writes two versions with arbitrary names: each is shown exactly
// or refused without a trace.
func FuzzPayload(f *testing.F) {
	f.Add("a", "b/c", "a/b")
	f.Add("..data", "../x", "/etc/passwd")
	f.Add(".", "", "x//y")
	f.Add("..2020", "ok", strings.Repeat("n", 300))
	f.Fuzz(func(t *testing.T, one, two, three string) {
		dir := t.TempDir()
		w := writer{dir: filepath.Join(dir, "in"), now: time.Now}
		mkdir(t, w.dir)
		shown := payload{}
		for _, p := range []payload{
			{one: {data: []byte("1"), mode: 0o644}, two: {data: []byte("2"), mode: 0o644}},
			{two: {data: []byte("2"), mode: 0o644}, three: {data: []byte("3"), mode: 0o644}},
		} {
			if _, err := w.write(p); err == nil {
				shown = p
			}
			for name, want := range shown {
				if got := readFile(t, w.dir, name); got != string(want.data) {
					t.Errorf("%q holds %q", name, got)
				}
			}
		}
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 1 {
			t.Errorf("files outside: %v, %v", entries, err)
		}
	})
}
