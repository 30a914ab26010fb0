package snapshot

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Entry is a snapshot file.
type Entry struct {
	File   string
	Bytes  int64
	Header Header
	// Broken says why it cannot be opened; Newer is true if a newer berth can.
	Broken string
	Newer  bool
}

// partSuffix ends the names of files that are being written.
const partSuffix = ".part"

// List returns the snapshots of a directory, newest first. None is no error.
func List(dir string, r Reader) ([]Entry, error) {
	names, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing snapshots: %w", err)
	}
	var all []Entry
	for _, n := range names {
		if n.Type().IsRegular() && strings.HasSuffix(n.Name(), Suffix) {
			all = append(all, look(filepath.Join(dir, n.Name()), r))
		}
	}
	slices.SortFunc(all, newestFirst)
	return all, nil
}

// look reads what a file says of itself, and compares its length.
func look(file string, r Reader) Entry {
	e := Entry{File: file}
	f, h, err := openFile(file)
	if err == nil {
		f.Close()
		e.Header = h
		err = h.CanOpen(r)
	}
	if info, statErr := os.Stat(file); statErr == nil {
		e.Bytes = info.Size()
	}
	if err != nil {
		var newer *newerError
		e.Broken, e.Newer = err.Error(), errors.As(err, &newer)
	}
	return e
}

// openFile opens a snapshot and reads its header. The file stands at its payload.
func openFile(file string) (_ *os.File, h Header, err error) {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, h, fmt.Errorf("opening the snapshot: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil, h, fmt.Errorf("reading %s: %w", file, cmpErr(err, errNoSnapshot))
	}
	block := make([]byte, headerSize)
	n, err := io.ReadFull(f, block)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, h, fmt.Errorf("reading %s: %w", file, err)
	}
	if h, err = decodeHeader(file, block[:n]); err != nil {
		return nil, h, err
	}
	if want := headerSize + h.PayloadBytes; info.Size() != want {
		return nil, h, fmt.Errorf("reading %s: it has %d bytes and its header says %d: the file is cut off or was changed", file,
			info.Size(),
			want)
	}
	return f, h, nil
}

func cmpErr(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}

// Verify reads a whole snapshot, checks every byte, and returns its manifest and
// the settings in it. It writes nothing.
func Verify(file string, keys Keys, r Reader) (*manifest, []byte, error) {
	f, h, err := openFile(file)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if err := h.CanOpen(r); err != nil {
		return nil, nil, err
	}
	var settings strings.Builder
	m, err := read(file, h, keys, f, func(p filePart) (io.WriteCloser, error) {
		if p.Name == SettingsName {
			return nopCloser{&settings}, nil
		}
		return discard(p)
	})
	return m, []byte(settings.String()), err
}

// Remove deletes a snapshot and makes that last.
func Remove(e Entry) error {
	if err := os.Remove(e.File); err != nil {
		return fmt.Errorf("removing a snapshot: %w", err)
	}
	return syncDir(filepath.Dir(e.File))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("writing %s to disk: %w", dir, err)
	}
	return nil
}

// needRoom refuses to fill a disk: etcd on it would stop.
func needRoom(dir string, bytes int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("asking for free space in %s: %w", dir, err)
	}
	const spare = 64 << 20
	if free := int64(st.Bavail) * st.Bsize; free < bytes+spare {
		return fmt.Errorf("%s has %d MiB free, and %d MiB are needed: make room or choose another directory", dir, free>>20,
			(bytes+spare)>>20)
	}
	return nil
}

// SealOf says what a file is sealed with.
func SealOf(file string) (sealing, error) {
	f, h, err := openFile(file)
	if err != nil {
		return "", err
	}
	f.Close()
	return h.Sealed, nil
}
