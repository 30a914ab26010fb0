package localvolume

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// Kind is what a volume is made of.
type Kind string

// The kinds of volumes.
const (
	Directory Kind = "directory"
	Image     Kind = "image"
)

const (
	recordFile = "volume.json"
	dataDir    = "data"
	imageFile  = "image"
	mountDir   = "mount"
)

// record is what the driver knows of a volume or snapshot; it is the marker
// without which nothing is ever deleted.
type record struct {
	ID string `json:"id"`
	// Name is the caller's, from which ID was made.
	Name string `json:"name"`
	Kind Kind   `json:"kind"`
	// Block is an image without a filesystem.
	Block bool `json:"block,omitempty"`
	// Bytes is the size promised.
	Bytes    int64 `json:"bytes"`
	Enforced bool  `json:"enforced"`
	// Project is the id of the project quota, 0 for none.
	Project uint32 `json:"project,omitempty"`
	// Source is the snapshot or volume it was copied from.
	Source  string    `json:"source,omitempty"`
	Created time.Time `json:"created"`
	// Used is true once a pod had the volume.
	Used bool `json:"used,omitempty"`
	// Published are the paths it was bound to, written before they are.
	Published []publication `json:"published,omitempty"`
}

// publication is one place where a pod sees a volume.
type publication struct {
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

var plain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,98}[a-z0-9])?$`)

// idOf makes an id, which is a file name, from a caller's name.
func idOf(name string) string {
	if plain.MatchString(name) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "v-" + hex.EncodeToString(sum[:16])
}

// validID says whether an id can be one of ours: whatever else a request
// names, it is not a path.
func validID(id string) bool { return plain.MatchString(id) }

// readAny reads the record of the folder dir, whatever the folder is called
// now; a folder without one is fs.ErrNotExist.
func readAny(dir string) (*record, error) {
	text, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return nil, err
	}
	r := &record{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("reading %s: %w", filepath.Join(dir, recordFile), err)
	}
	return r, nil
}

// readRecord reads the record of the folder of a volume.
func readRecord(dir string) (*record, error) {
	r, err := readAny(dir)
	if err != nil {
		return nil, err
	}
	if r.ID != filepath.Base(dir) {
		return nil, fmt.Errorf("reading %s: it is the record of %q", filepath.Join(dir, recordFile), r.ID)
	}
	return r, nil
}

// writeRecord replaces the record of dir, whole or not at all.
func writeRecord(dir string, r *record) (err error) {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, recordFile+".*")
	if err != nil {
		return fmt.Errorf("writing the record of volume %s: %w", r.ID, err)
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
			err = fmt.Errorf("writing the record of volume %s: %w", r.ID, err)
		}
	}()
	if _, err = f.Write(text); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), filepath.Join(dir, recordFile)); err != nil {
		return err
	}
	return syncDir(dir)
}

// syncDir makes the names in a directory survive a loss of power: the API must
// not know of a volume that is not there after it.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// list reads the records of all folders below dir. One that cannot be read is
// told and left alone.
func list(dir string, told func(error)) ([]*record, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	out := make([]*record, 0, len(entries))
	for _, e := range entries {
		switch r, err := readRecord(filepath.Join(dir, e.Name())); {
		case err == nil:
			out = append(out, r)
		case !errors.Is(err, fs.ErrNotExist):
			told(err)
		}
	}
	return out, nil
}
