package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/coreos/go-semver/semver"
	"go.etcd.io/etcd/api/v3/version"
)

// formatFile records who wrote a data directory last.
const formatFile = "format.json"

// layout is the number of our own arrangement of the data directory (where
// etcd's files lie, how keys are named). It grows when an older program would
// not find its way around any more.
const layout = 1

type format struct {
	Layout int    `json:"layout"`
	Etcd   string `json:"etcd"`
}

// checkFormat refuses data of a newer program. etcd would refuse as well, but
// with a panic deep inside, and only for its own part.
func checkFormat(dir string) error {
	raw, err := os.ReadFile(filepath.Join(dir, formatFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading data format: %w", err)
	}
	var f format
	if err := json.Unmarshal(raw, &f); err != nil {
		return fmt.Errorf("reading data format in %s: %w", filepath.Join(dir, formatFile), err)
	}
	if f.Layout > layout {
		return &NewerDataError{Dir: dir, Wrote: fmt.Sprintf("layout %d", f.Layout), Reads: fmt.Sprintf("layout %d", layout)}
	}
	wrote, err := semver.NewVersion(f.Etcd)
	if err != nil {
		return fmt.Errorf("reading etcd version in %s: %w", filepath.Join(dir, formatFile), err)
	}
	reads := semver.New(version.Version)
	if wrote.Major > reads.Major || wrote.Major == reads.Major && wrote.Minor > reads.Minor {
		return &NewerDataError{Dir: dir, Wrote: "etcd " + f.Etcd, Reads: "etcd " + version.Version}
	}
	return nil
}

// writeFormat replaces the record when it changed; the rename keeps it whole
// if we die in between.
func writeFormat(dir string) error {
	want, err := json.Marshal(format{Layout: layout, Etcd: version.Version})
	if err != nil {
		return err
	}
	path := filepath.Join(dir, formatFile)
	if have, err := os.ReadFile(path); err == nil && string(have) == string(want) {
		return nil
	}
	if err := os.WriteFile(path+".new", want, 0o600); err != nil {
		return fmt.Errorf("writing data format: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("writing data format: %w", err)
	}
	return nil
}

// EtcdVersion is the version of the embedded etcd server.
var EtcdVersion = version.Version
