// Package checkpoint keeps the state of the resource managers in the files and
// formats that the kubelet uses for them, checksums included, so that a node
// can change over in either direction without draining.
package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/utils/dump"
)

// Checksum guards a file against truncation and hands; it is no secret.
type Checksum uint64

// naming is how one of our types prints, and how the kubelet's prints.
type naming struct{ ours, theirs string }

// sum is the checksum of a value as the kubelet computes it: over a dump that
// contains type names, which are therefore part of the format.
func sum(v any, names ...naming) Checksum {
	text := dump.ForHash(v)
	for _, n := range names {
		text = strings.ReplaceAll(text, n.ours, n.theirs)
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(text)) // a hash never fails
	return Checksum(h.Sum32())
}

// CRC is the checksum of formats that keep their data as text.
func CRC(data string) uint32 { return crc32.ChecksumIEEE([]byte(data)) }

// CorruptError is a file that is not what was once written.
type CorruptError struct {
	Path string
	Err  error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("the checkpoint %s is corrupt (%v): drain this node and delete the file before starting again", e.Path, e.Err)
}

// Unwrap returns what is wrong with it.
func (e *CorruptError) Unwrap() error { return e.Err }

var errChecksum = errors.New("its checksum does not match")

// Write replaces a file as a whole, on disk before it returns. Writers of one
// file take turns.
func Write(path string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("writing the checkpoint %s: %w", path, err)
	}
	// One name, so that a crash half-way leaves one file at most.
	f, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("writing the checkpoint %s: %w", path, err)
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(path)) // else a power cut may take the new name away
	}
	if err != nil {
		return fmt.Errorf("writing the checkpoint %s: %w", path, err)
	}
	return nil
}

// syncDir puts a directory's names on disk. A variable, for tests.
var syncDir = func(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Read reads a file into v; found is false where there is none.
func Read(path string, v any) (found bool, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading the checkpoint %s: %w", path, err)
	}
	if err := json.Unmarshal(text, v); err != nil {
		return false, &CorruptError{path, err}
	}
	return true, nil
}
