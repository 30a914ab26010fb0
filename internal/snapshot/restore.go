package snapshot

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Restore is a restore that was planned and agreed to.
type Restore struct {
	File    string
	Keys    Keys
	Reader  Reader
	DataDir string
	Plan    *Plan
	// Settings changes the cluster's settings on their way in.
	Settings func([]byte) ([]byte, error)
	// PeerSocket is where the store's only member will listen for others.
	PeerSocket string

	at steps
}

// Run makes the new state beside the old one and exchanges them. The caller
// holds the data directory's lock. A process that ends in the middle leaves the
// old state, or, once all is prepared, one that Finish completes.
func (r *Restore) Run() (err error) {
	if err := Finish(r.DataDir); err != nil {
		return err
	}
	if err := movable(r.DataDir); err != nil {
		return err
	}
	f, h, err := openFile(r.File)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := h.CanOpen(r.Reader); err != nil {
		return err
	}
	// The store lies there twice for a moment, and a log of 64 MB is made.
	if err := needRoom(r.DataDir, 2*h.StoreBytes+64<<20); err != nil {
		return err
	}
	staged := filepath.Join(r.DataDir, stagedName)
	if err := os.MkdirAll(filepath.Join(staged, "pki"), 0o700); err != nil {
		return err
	}
	defer func() {
		if err != nil && !exists(filepath.Join(r.DataDir, pendingName)) {
			err = errors.Join(err, os.RemoveAll(staged))
		}
	}()
	r.at.at("begun")
	if _, err := read(r.File, h, r.Keys, f, func(p filePart) (io.WriteCloser, error) { return stage(staged, p) }); err != nil {
		return err
	}
	r.at.at("unpacked")
	if err := r.changeSettings(filepath.Join(staged, SettingsName)); err != nil {
		return err
	}
	db := filepath.Join(staged, StoreName)
	if err := os.Mkdir(filepath.Join(staged, "etcd"), 0o700); err != nil {
		return err
	}
	if err := restoreStore(db, filepath.Join(staged, "etcd", "member-data"), r.PeerSocket, r.Plan.Bump); err != nil {
		return err
	}
	if err := os.Remove(db); err != nil {
		return err
	}
	r.at.at("made the store")
	return commit(r.DataDir, r.Plan.Aside, r.at)
}

// stage opens a part's file. Names were checked by the reader of the manifest.
func stage(staged string, p filePart) (io.WriteCloser, error) {
	return os.OpenFile(filepath.Join(staged, filepath.FromSlash(p.Name)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode(p.Name))
}

// mode is what berth gives the files that others on the host may read, and 0600
// for everything else.
func mode(name string) os.FileMode {
	switch filepath.Ext(name) {
	case ".crt", ".pub":
		return 0o644
	}
	if name == SettingsName {
		return 0o644
	}
	return 0o600
}

func (r *Restore) changeSettings(file string) error {
	if r.Settings == nil {
		return nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if data, err = r.Settings(data); err != nil {
		return err
	}
	if err := os.WriteFile(file, data, 0o644); err != nil {
		return fmt.Errorf("writing the cluster's settings: %w", err)
	}
	return nil
}

// HasState says whether a data directory holds the state of a cluster.
func HasState(dataDir string) bool {
	for _, name := range replaced {
		path := filepath.Join(dataDir, name)
		if entries, err := os.ReadDir(path); err == nil && len(entries) == 0 {
			continue
		}
		if exists(path) {
			return true
		}
	}
	return false
}
