package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"sync"
)

// volume is what is kept of one volume, in a file beside its data.
type volume struct {
	ID, Name string
	Size     int64
	Block    bool
	// Ephemeral volumes live and die with one pod.
	Ephemeral bool
	// Node has it attached, ReadOnly how; "" for none.
	Node     string
	ReadOnly bool
	// Staged is where it is staged, Published where it is published and whether
	// read-only.
	Staged    string
	Published map[string]bool
}

// store keeps volumes in a directory. Its methods need the lock.
type store struct {
	sync.Mutex
	dir string
	all map[string]*volume
}

func openStore(dir string) (*store, error) {
	s := &store{dir: dir, all: map[string]*volume{}}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		b, err := os.ReadFile(s.path(e.Name(), "volume.json"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		v := &volume{}
		if err := errors.Join(err, json.Unmarshal(b, v)); err != nil {
			return nil, err
		}
		s.all[v.ID] = v
	}
	return s, nil
}

func (s *store) path(id string, rest ...string) string {
	return filepath.Join(append([]string{s.dir, id}, rest...)...)
}

// data is what a volume holds: a directory, or the file behind its device.
func (s *store) data(v *volume) string {
	if v.Block {
		return s.path(v.ID, "image")
	}
	return s.path(v.ID, "data")
}

func (s *store) save(v *volume) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	tmp := s.path(v.ID, "volume.json.tmp")
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	if err := os.Rename(tmp, s.path(v.ID, "volume.json")); err != nil {
		return err
	}
	s.all[v.ID] = v
	return nil
}

func (s *store) create(v *volume) error {
	if err := os.MkdirAll(s.path(v.ID), 0o755); err != nil {
		return err
	}
	if v.Block {
		if err := s.resize(v); err != nil {
			return err
		}
	} else if err := os.MkdirAll(s.data(v), 0o755); err != nil {
		return err
	}
	return s.save(v)
}

// resize makes the file behind a device as large as the volume.
func (s *store) resize(v *volume) error {
	f, err := os.OpenFile(s.data(v), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(v.Size), f.Close())
}

func (s *store) remove(v *volume) error {
	delete(s.all, v.ID)
	return os.RemoveAll(s.path(v.ID))
}

func (s *store) byName(name string) *volume {
	for _, v := range s.all {
		if v.Name == name {
			return v
		}
	}
	return nil
}

// sorted lists persistent volumes in a stable order.
func (s *store) sorted() []*volume {
	var out []*volume
	for _, v := range s.all {
		if !v.Ephemeral {
			out = append(out, v)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].ID < out[j].ID })
	return out
}

// used is how much a directory volume holds.
func (s *store) used(v *volume) (bytes, files int64, err error) {
	err = filepath.WalkDir(s.data(v), func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		files++
		if info.Mode().IsRegular() {
			bytes += info.Size()
		}
		return nil
	})
	return bytes, files, err
}
