// Package userns hands out ranges of the host's user and group ids to pods
// that have a user namespace of their own, never one range to two pods.
package userns

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/agent/container"
)

const (
	// Block is the unit of ranges: what one container image may use.
	Block = 65536
	// file is where a pod's range is kept, in its directory.
	file = "userns"
)

// Config bounds the ranges.
type Config struct {
	// RootDir is the agent's data directory.
	RootDir string
	// First and Count bound the host ids to hand out; 0 and 0 mean everything
	// from 65536 to 2^32. First must be a multiple of 65536.
	First, Count uint64
	// PerPod is how many ids a pod gets: a multiple of 65536; 0 means 65536.
	PerPod uint64
	// Pods is how many pods the range must hold at least; 0 means one.
	Pods int
}

// Ranges is the table of ranges in use. What is on disk is the record; the
// table is rebuilt from it.
type Ranges struct {
	cfg Config

	mu    sync.Mutex
	byPod map[types.UID]uint64 // start of the pod's range
	used  map[uint64]types.UID
	// next is where the search goes on, so that a range rests before reuse.
	next uint64
}

// mapping is the file's content; the format is the kubelet's.
type mapping struct {
	UIDs []entry `json:"uidMappings"`
	GIDs []entry `json:"gidMappings"`
}

type entry struct {
	HostID      uint32 `json:"hostId"`
	ContainerID uint32 `json:"containerId"`
	Length      uint32 `json:"length"`
}

// Open checks the bounds and finds the ranges of pods on disk.
func Open(cfg Config) (*Ranges, error) {
	if cfg.PerPod == 0 {
		cfg.PerPod = Block
	}
	if cfg.First == 0 && cfg.Count == 0 {
		cfg.First, cfg.Count = Block, 1<<32-Block
	}
	switch {
	case cfg.PerPod%Block != 0 || cfg.PerPod >= 1<<32:
		return nil, fmt.Errorf("userNamespaces.idsPerPod %d: must be a multiple of %d below 2^32", cfg.PerPod, Block)
	case cfg.First%Block != 0 || cfg.First < Block:
		return nil, fmt.Errorf("first host id %d for user namespaces: must be a multiple of %d and not 0, which is the host's own",
			cfg.First, Block)
	case cfg.First+cfg.Count > 1<<32 || cfg.Count < cfg.PerPod:
		return nil, fmt.Errorf("host ids %d to %d for user namespaces: must hold at least %d and end at 2^32", cfg.First,
			cfg.First+cfg.Count, cfg.PerPod)
	}
	if need := cfg.PerPod * uint64(max(cfg.Pods, 1)); cfg.Count < need {
		return nil, fmt.Errorf("host ids %d to %d for user namespaces: %d pods of %d ids each need %d", cfg.First, cfg.First+cfg.Count,
			cfg.Pods, cfg.PerPod, need)
	}
	r := &Ranges{cfg: cfg, byPod: map[types.UID]uint64{}, used: map[uint64]types.UID{}, next: cfg.First}
	entries, err := os.ReadDir(filepath.Join(cfg.RootDir, "pods"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading user namespaces of pods: %w", err)
	}
	for _, e := range entries {
		if err := r.adopt(types.UID(e.Name())); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// adopt takes over a range from disk. Two pods with one range means that files
// were tampered with; going on would let them touch each other's files.
func (r *Ranges) adopt(uid types.UID) error {
	b, err := os.ReadFile(r.file(uid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the user namespace of pod %s: %w", uid, err)
	}
	var m mapping
	if err := json.Unmarshal(b, &m); err != nil || len(m.UIDs) != 1 || len(m.GIDs) != 1 || m.UIDs[0] != m.GIDs[0] || m.UIDs[0].Length == 0 {
		return fmt.Errorf("reading the user namespace of pod %s: %s is not one range for users and groups alike", uid, r.file(uid))
	}
	start, length := uint64(m.UIDs[0].HostID), uint64(m.UIDs[0].Length)
	for other, o := range r.byPod {
		if start < o+r.cfg.PerPod && o < start+length {
			return fmt.Errorf("pods %s and %s have overlapping user namespaces: remove one of them and its directory", uid, other)
		}
	}
	r.byPod[uid], r.used[start] = start, uid
	return nil
}

func (r *Ranges) file(uid types.UID) string {
	return filepath.Join(container.PodDir(r.cfg.RootDir, string(uid)), file)
}

// Allocate returns the pod's range, a new one if it has none. The range is on
// disk before it is returned.
func (r *Ranges) Allocate(uid types.UID) (*container.UserNamespace, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	start, ok := r.byPod[uid]
	if !ok {
		var err error
		if start, err = r.find(); err != nil {
			return nil, err
		}
		if err := r.write(uid, start); err != nil {
			return nil, fmt.Errorf("recording the user namespace of pod %s: %w", uid, err)
		}
		r.byPod[uid], r.used[start] = start, uid
	}
	m := []container.IDMapping{{HostID: uint32(start), Length: uint32(r.cfg.PerPod)}}
	return &container.UserNamespace{UIDs: m, GIDs: m}, nil
}

// find is the next range that overlaps none in use.
func (r *Ranges) find() (uint64, error) {
	end := r.cfg.First + r.cfg.Count
	for range r.cfg.Count / r.cfg.PerPod {
		if r.next+r.cfg.PerPod > end {
			r.next = r.cfg.First
		}
		start := r.next
		r.next += r.cfg.PerPod
		if _, taken := r.used[start]; !taken {
			return start, nil
		}
	}
	return 0, fmt.Errorf("no user namespace is free: %d pods have all %d ids of this node", len(r.byPod), r.cfg.Count)
}

func (r *Ranges) write(uid types.UID, start uint64) error {
	e := []entry{{HostID: uint32(start), Length: uint32(r.cfg.PerPod)}}
	b, err := json.Marshal(mapping{e, e})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(r.file(uid)), 0o750); err != nil {
		return err
	}
	tmp := r.file(uid) + ".tmp"
	if err := os.WriteFile(tmp, b, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, r.file(uid))
}

// Release frees the range of a pod whose containers are all gone. Its file
// goes with the pod's directory, or now.
func (r *Ranges) Release(uid types.UID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := os.Remove(r.file(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("releasing the user namespace of pod %s: %w", uid, err)
	}
	if start, ok := r.byPod[uid]; ok {
		delete(r.byPod, uid)
		delete(r.used, start)
	}
	return nil
}
