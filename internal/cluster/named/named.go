// Package named keeps the clusters that have a name instead of a data
// directory: where they lie, and which ports and address ranges each has to
// itself. A throw-away cluster lies in memory, where there is a tmpfs.
package named

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// slots is how many named clusters a host has room for: each slot is a block
	// of ports, a pod CIDR and a service CIDR.
	slots = 64
	// firstPort and portsEach place the blocks of ports, below the ranges of node
	// ports (30000) and of outgoing connections (32768).
	firstPort, portsEach = 21000, 8
	// leastMemory is the room that a tmpfs must have to hold a cluster.
	leastMemory = 512 << 20
)

// name is what a cluster may be called: a part of paths and of socket names,
// which are short.
var name = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$`)

// CheckName says why a cluster cannot have a name.
func CheckName(s string) error {
	if !name.MatchString(s) {
		return fmt.Errorf("cluster name %q: allowed are up to 32 lower-case letters, digits and dashes, with a letter or digit at "+
			"both ends", s)
	}
	return nil
}

// Home is where named clusters lie.
type Home struct {
	// Disk holds clusters that outlive the host's next start.
	Disk string
	// Memory holds throw-away clusters; empty where no tmpfs has room.
	Memory string
}

// Default is the home of the user who runs this process. Nobody else may be able
// to write to it.
func Default() Home {
	uid := os.Geteuid()
	h := Home{Disk: "/var/lib/berth-clusters"}
	if uid != 0 {
		state := os.Getenv("XDG_STATE_HOME")
		if state == "" {
			home, err := os.UserHomeDir()
			if err != nil {
				home = filepath.Join(os.TempDir(), fmt.Sprintf("berth-%d", uid))
			}
			state = filepath.Join(home, ".local", "state")
		}
		h.Disk = filepath.Join(state, "berth")
	}
	for _, dir := range []string{os.Getenv("XDG_RUNTIME_DIR"), "/run", "/dev/shm"} {
		if dir == "" || uid != 0 && dir == "/run" {
			continue
		}
		if free, ok := tmpfs(dir); ok && free >= leastMemory {
			h.Memory = filepath.Join(dir, fmt.Sprintf("berth-%d", uid))
			break
		}
	}
	return h
}

// tmpfs says whether dir is on a tmpfs, and how many bytes it has free.
func tmpfs(dir string) (free uint64, ok bool) {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil || st.Type != unix.TMPFS_MAGIC {
		return 0, false
	}
	return st.Bavail * uint64(st.Bsize), true
}

// Place is what a named cluster has to itself.
type Place struct {
	Name, DataDir string
	// Slot numbers its ports and ranges, from 0.
	Slot int
	// New is true for a cluster that was not there before.
	New bool
	// InMemory is true if its data are gone with the host's next start.
	InMemory bool
}

// FirstPort is the first of the block of ports of this cluster.
func (p Place) FirstPort() int { return firstPort + portsEach*p.Slot }

// ClusterCIDR and ServiceCIDR are ranges that no other named cluster has.
func (p Place) ClusterCIDR() string { return fmt.Sprintf("10.%d.0.0/16", 192+p.Slot) }

// ServiceCIDR is the range of its Services.
func (p Place) ServiceCIDR() string { return fmt.Sprintf("172.28.%d.0/22", 4*p.Slot) }

// Find returns the place of a cluster that is there.
func (h Home) Find(name string) (Place, error) {
	if err := CheckName(name); err != nil {
		return Place{}, err
	}
	all, err := h.List()
	if err != nil {
		return Place{}, err
	}
	i := slices.IndexFunc(all, func(p Place) bool { return p.Name == name })
	if i < 0 {
		return Place{}, fmt.Errorf("there is no cluster named %q: `berth ls` lists those that there are", name)
	}
	return all[i], nil
}

// List returns the clusters that are there, by name.
func (h Home) List() ([]Place, error) {
	entries, err := os.ReadDir(h.slots())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing the named clusters: %w", err)
	}
	var out []Place
	for _, e := range entries {
		if p, ok := h.place(e.Name()); ok {
			out = append(out, p)
		}
	}
	return out, nil
}

// place reads the slot of a cluster. It is not there without its directory:
// memory is empty after the host's next start.
func (h Home) place(name string) (Place, bool) {
	text, err := os.ReadFile(filepath.Join(h.slots(), name))
	slot, bad := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || bad != nil || slot < 0 || slot >= slots || CheckName(name) != nil {
		return Place{}, false
	}
	for _, root := range []string{h.Memory, h.Disk} {
		if root == "" {
			continue
		}
		dir := filepath.Join(root, name)
		if st, err := os.Lstat(dir); err == nil && st.IsDir() {
			return Place{Name: name, DataDir: dir, Slot: slot, InMemory: root == h.Memory}, true
		}
	}
	return Place{}, false
}

func (h Home) slots() string { return filepath.Join(h.Disk, ".slots") }

// Make returns the place of a cluster, and makes one if there is none yet: in
// memory where that is asked for and can be had. usable says whether a slot's
// ports are free on this host.
func (h Home) Make(name string, inMemory bool, usable func(Place) bool) (Place, error) {
	if err := CheckName(name); err != nil {
		return Place{}, err
	}
	if err := private(h.Disk); err != nil {
		return Place{}, err
	}
	if err := os.MkdirAll(h.slots(), 0o700); err != nil {
		return Place{}, fmt.Errorf("making the directory of named clusters: %w", err)
	}
	unlock, err := h.lock()
	if err != nil {
		return Place{}, err
	}
	defer unlock()
	if p, ok := h.place(name); ok {
		return p, nil
	}
	root := h.Disk
	if inMemory && h.Memory != "" {
		if err := private(h.Memory); err != nil {
			return Place{}, err
		}
		root = h.Memory
	}
	p := Place{Name: name, DataDir: filepath.Join(root, name), New: true, InMemory: root == h.Memory}
	if p.Slot, err = h.freeSlot(p, usable); err != nil {
		return Place{}, err
	}
	if err := os.WriteFile(filepath.Join(h.slots(), name), []byte(strconv.Itoa(p.Slot)+"\n"), 0o600); err != nil {
		return Place{}, fmt.Errorf("taking a slot for cluster %s: %w", name, err)
	}
	if err := os.Mkdir(p.DataDir, 0o755); err != nil {
		return Place{}, fmt.Errorf("making the directory of cluster %s: %w", name, err)
	}
	return p, nil
}

// freeSlot is the first slot that no cluster has and whose ports are free.
func (h Home) freeSlot(p Place, usable func(Place) bool) (int, error) {
	all, err := h.List()
	if err != nil {
		return 0, err
	}
	for p.Slot = range slots {
		if !slices.ContainsFunc(all, func(o Place) bool { return o.Slot == p.Slot }) && usable(p) {
			return p.Slot, nil
		}
	}
	return 0, fmt.Errorf("cluster %s: all %d blocks of ports from %d on are taken: `berth delete` removes clusters that nobody needs",
		p.Name,
		slots, firstPort)
}

// Forget frees the slot of a cluster whose directory is gone.
func (h Home) Forget(p Place) error {
	if err := os.Remove(filepath.Join(h.slots(), p.Name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("freeing the slot of cluster %s: %w", p.Name, err)
	}
	return nil
}

// lock keeps other processes from choosing a slot at the same time. It is let go
// when the process ends, however it ends.
func (h Home) lock() (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(h.slots(), ".lock"), os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking the named clusters: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("locking the named clusters: %w", err)
	}
	return func() { f.Close() }, nil
}

// private makes a directory that only this user can write to. One of somebody
// else, as anybody can make in /dev/shm, is refused: it would hand them the keys
// of the cluster.
func private(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the directory of named clusters: %w", err)
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("looking at the directory of named clusters: %w", err)
	}
	own, ok := st.Sys().(*syscall.Stat_t)
	if !ok || !st.IsDir() || own.Uid != uint32(os.Geteuid()) || st.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("directory %s belongs to another user, or others may write to it: remove it, named clusters need it for "+
			"themselves",
			dir)
	}
	return nil
}
