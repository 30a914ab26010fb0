package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Origin is the cluster that is saved.
type Origin struct {
	// Header has what is known before the store is read.
	Header Header
	// ProviderConfig is the user's own encryption configuration, or empty.
	ProviderConfig string
	// Store begins etcd's snapshot of the store and tells the store's size in
	// bytes, 0 if it is not known.
	Store func(context.Context) (r io.ReadCloser, size int64, err error)
}

// Request is where and how a snapshot is saved.
type Request struct {
	Dir, Name string
	Keys      Keys
	Scheduled bool
	Now       time.Time
}

// busyError says that another snapshot of the same cluster is being made.
type busyError struct{ DataDir string }

func (e *busyError) Error() string {
	return "another snapshot of " + e.DataDir + " is being made: wait for its end"
}

const (
	lockName  = "snapshot.lock"
	spoolName = "snapshot.store.tmp"
	// attempts bounds how often a save begins again because a key changed.
	attempts = 3
)

// CheckDir refuses what is no directory of this host.
func CheckDir(dir string) error {
	if strings.Contains(dir, "://") {
		return fmt.Errorf("snapshot directory %s: only directories are supported yet: save to one, and copy the file from there", dir)
	}
	return nil
}

// Save writes a snapshot of from. The file appears under its name when it is
// whole and on disk; nothing else is left in any case.
func Save(ctx context.Context, from Origin, r Request) (Entry, error) {
	if err := checkName(r.Name); err != nil {
		return Entry{}, err
	}
	if err := CheckDir(r.Dir); err != nil {
		return Entry{}, err
	}
	if r.Keys.sealing == "" {
		return Entry{}, errors.New("no passphrase and no key file is given to seal with")
	}
	file := filepath.Join(r.Dir, r.Name+Suffix)
	if _, err := os.Lstat(file); err == nil {
		return Entry{}, fmt.Errorf("%s is there already: choose another --name", file)
	}
	release, err := lockSaves(from.Header.DataDir)
	if err != nil {
		return Entry{}, err
	}
	defer release()
	if err := os.MkdirAll(r.Dir, 0o700); err != nil {
		return Entry{}, fmt.Errorf("making the snapshot directory: %w", err)
	}
	spooled := filepath.Join(from.Header.DataDir, spoolName)
	defer os.Remove(spooled)
	h := from.Header
	h.Name, h.Time, h.Sealed, h.Scheduled = r.Name, r.Now.UTC().Truncate(time.Second), r.Keys.sealing, r.Scheduled
	small, store, err := collect(ctx, from, spooled)
	if err != nil {
		return Entry{}, err
	}
	if h.Revision, err = Revision(spooled); err != nil {
		return Entry{}, err
	}
	h.StoreBytes = store.Bytes
	m := manifest{Header: h}
	parts := append(sources(small), source{store, func() (io.ReadCloser, error) { return os.Open(spooled) }})
	for _, p := range parts {
		m.Parts = append(m.Parts, p.filePart)
	}
	if err := m.checkParts(); err != nil {
		return Entry{}, fmt.Errorf("saving %s: %w", from.Header.DataDir, err)
	}
	if err := needRoom(r.Dir, store.Bytes); err != nil {
		return Entry{}, err
	}
	if err := writeFile(file, r.Keys, m, parts); err != nil {
		return Entry{}, fmt.Errorf("writing snapshot %s: %w", file, err)
	}
	e := Entry{File: file, Header: h}
	if info, err := os.Stat(file); err == nil {
		e.Bytes = info.Size()
	}
	return e, nil
}

// collect copies the store and reads the keys before and after: a rotation of
// keys in between could leave a store that the keys do not open.
func collect(ctx context.Context, from Origin, spooled string) (map[string][]byte, filePart, error) {
	before, err := smallParts(from)
	if err != nil {
		return nil, filePart{}, err
	}
	for range attempts {
		store, err := copyStore(ctx, from, spooled)
		if err != nil {
			return nil, store, err
		}
		after, err := smallParts(from)
		if err != nil {
			return nil, store, err
		}
		if equalParts(before, after) {
			return after, store, nil
		}
		before = after
	}
	return nil, filePart{}, fmt.Errorf("saving %s: its keys or settings changed %d times while the store was copied: try again",
		from.Header.DataDir,
		attempts)
}

func copyStore(ctx context.Context, from Origin, spooled string) (filePart, error) {
	r, size, err := from.Store(ctx)
	if err != nil {
		return filePart{}, err
	}
	defer r.Close()
	if err := needRoom(filepath.Dir(spooled), size); err != nil {
		return filePart{}, err
	}
	return spoolStore(ctx, spooled, r)
}

func equalParts(a, b map[string][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for name, data := range a {
		if other, ok := b[name]; !ok || !bytes.Equal(data, other) {
			return false
		}
	}
	return true
}

// smallParts reads everything but the store.
func smallParts(from Origin) (map[string][]byte, error) {
	dir := from.Header.DataDir
	parts := map[string][]byte{}
	entries, err := os.ReadDir(filepath.Join(dir, "pki"))
	if err != nil {
		return nil, fmt.Errorf("reading the cluster's keys: %w", err)
	}
	files := map[string]string{SettingsName: filepath.Join(dir, SettingsName)}
	if from.ProviderConfig != "" {
		files[ProviderConfigName] = from.ProviderConfig
	}
	for _, e := range entries {
		if e.Type().IsRegular() && !strings.HasSuffix(e.Name(), ".new") {
			files[PKIDir+e.Name()] = filepath.Join(dir, "pki", e.Name())
		}
	}
	for name, file := range files {
		data, err := readBounded(file, maxSmallPart)
		if errors.Is(err, fs.ErrNotExist) && name != SettingsName {
			continue // it was replaced while we looked
		}
		if err != nil {
			return nil, fmt.Errorf("reading the cluster's keys and settings: %w", err)
		}
		parts[name] = data
	}
	return parts, nil
}

func sources(small map[string][]byte) (parts []source) {
	for _, name := range sortedNames(small) {
		data := small[name]
		sum := sha256.Sum256(data)
		parts = append(parts, source{filePart{name, int64(len(data)), hex.EncodeToString(sum[:])}, func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(data)), nil
		}})
	}
	return parts
}

// lockSaves lets one save at a time run on a data directory; the kernel frees it
// when the process ends.
func lockSaves(dataDir string) (release func(), err error) {
	f, err := os.OpenFile(filepath.Join(dataDir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("starting a snapshot: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, &busyError{dataDir}
		}
		return nil, fmt.Errorf("starting a snapshot: %w", err)
	}
	return func() { f.Close() }, nil
}

// writeFile writes a snapshot under a temporary name, to disk, and gives it its
// name without replacing another.
func writeFile(file string, keys Keys, m manifest, parts []source) (err error) {
	tmp := file + partSuffix
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		f.Close()
		if err != nil {
			os.Remove(tmp)
		}
	}()
	if err := f.Chmod(0o600); err != nil { // it may have been there, with another mode
		return err
	}
	if _, err := f.Seek(headerSize, io.SeekStart); err != nil {
		return err
	}
	if err := writePayload(f, keys, m, parts); err != nil {
		return err
	}
	end, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	m.PayloadBytes = end - headerSize
	block, err := m.Header.encode()
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(block, 0); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, file, unix.RENAME_NOREPLACE); err != nil {
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) { // network file systems do not know the flag
			return fmt.Errorf("naming it: %w", err)
		}
		if err := os.Rename(tmp, file); err != nil {
			return err
		}
	}
	return syncDir(filepath.Dir(file))
}
