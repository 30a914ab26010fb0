package stats

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A known pod costs one system call per file, three for its network, and
// nothing of the runtime.
func TestWhatASummaryCosts(t *testing.T) {
	const pods, hostInfo = 20, 30
	for version, perPod := range map[int]int64{1: 5 + 2*4 + 3, 2: 8 + 2*7 + 3} {
		p := provider(t, version, pods, func(c *Config) { c.Runtime, c.DiskAge = nil, time.Hour })
		var cost [3]int64
		for i := range cost {
			before := p.cfg.Reader.calls.Load()
			if _, err := p.Summary(t.Context(), false); err != nil {
				t.Fatal(err)
			}
			cost[i] = p.cfg.Reader.calls.Load() - before
		}
		if most := pods*perPod + hostInfo; cost[2] > most || cost[2] < pods*perPod/2 {
			t.Errorf("version %d: summaries of %d pods made %v system calls, want at most %d when pods are known", version, pods, cost,
				most)
		}
		before := p.cfg.Reader.calls.Load()
		if err := p.WriteResource(t.Context(), io.Discard); err != nil {
			t.Fatal(err)
		}
		if cost := p.cfg.Reader.calls.Load() - before; cost > pods*perPod+hostInfo {
			t.Errorf("version %d: /metrics/resource made %d system calls", version, cost)
		}
	}
}

// What is beyond the bound is read all the same, and not kept.
func TestKeptFilesAreBounded(t *testing.T) {
	_, mounts, _ := host(t, 2, 3)
	free, bounded := NewReader(mounts), NewReader(mounts)
	bounded.most = 10
	for range 2 {
		for i := range 3 {
			path := fmt.Sprintf("/kubepods/poduid-%d", i)
			want, err := free.Read(path, Everything)
			if err != nil {
				t.Fatal(err)
			}
			got, err := bounded.Read(path, Everything)
			if err != nil || got.Memory != want.Memory || got.PIDs != want.PIDs || got.Reads != want.Reads || got.Memory == 0 {
				t.Errorf("%s: bounded read %+v, %v, want %+v", path, got, err, want)
			}
		}
	}
	if n := bounded.open.Load(); n != 10 {
		t.Errorf("%d files are kept, the bound is 10", n)
	}
}

// Files of cgroups that no one reads are closed.
func TestIdleFilesAreClosed(t *testing.T) {
	_, mounts, _ := host(t, 1, 2)
	r := NewReader(mounts)
	for i := range 2 {
		if _, err := r.Read(fmt.Sprintf("/kubepods/poduid-%d", i), Everything); err != nil {
			t.Fatal(err)
		}
	}
	kept := r.open.Load()
	r.sweep(time.Now())
	if r.open.Load() != kept || kept == 0 {
		t.Errorf("%d of %d files are left right after they were read", r.open.Load(), kept)
	}
	r.sweep(time.Now().Add(keptIdle))
	if r.open.Load() != 0 || r.sweeper != nil {
		t.Errorf("%d of %d files are left after %v", r.open.Load(), kept, keptIdle)
	}
	if _, err := r.Read("/kubepods/poduid-0", Memory); err != nil || r.open.Load() == 0 {
		t.Errorf("reading again: %v, %d files", err, r.open.Load())
	}
}

// A real cgroup that was removed under its open files is gone, and one made
// again under the same name is read.
func TestRemovedCgroup(t *testing.T) {
	mounts, err := FindMounts()
	if err != nil {
		t.Skipf("no cgroups on this host: %v", err)
	}
	r := NewReader(mounts)
	name := fmt.Sprintf("/berth-test-stats-%d", os.Getpid())
	var dirs []string
	for _, mount := range []string{mounts.Unified, mounts.CPUAcct, mounts.Memory} {
		if mount != "" && (mounts.Unified == "" || mount == mounts.Unified) {
			dirs = append(dirs, filepath.Join(mount, name))
		}
	}
	make := func() {
		for _, dir := range dirs {
			if err := os.Mkdir(dir, 0o755); errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS) {
				t.Skipf("cgroups cannot be made here: %v", err)
			} else if err != nil && !errors.Is(err, os.ErrExist) {
				t.Fatal(err)
			}
		}
	}
	remove := func() {
		for _, dir := range dirs {
			os.Remove(dir)
		}
	}
	defer remove()
	for range 2 {
		make()
		for range 2 {
			if _, err := r.Read(name, CPU|Memory); err != nil {
				t.Fatal(err)
			}
		}
		// Removed and made again between two readings.
		remove()
		make()
		if _, err := r.Read(name, CPU|Memory); err != nil {
			t.Errorf("a cgroup made again: %v", err)
		}
		remove()
		if _, err := r.Read(name, CPU|Memory); !errors.Is(err, ErrGone) {
			t.Errorf("a removed cgroup reads as %v", err)
		}
	}
	if n := r.open.Load(); n != 0 {
		t.Errorf("%d files of removed cgroups are open", n)
	}
}

// An open file shows what is so now.
func TestKeptFilesShowTheLatest(t *testing.T) {
	p := provider(t, 2, 1, nil)
	path := filepath.Join(p.cfg.Reader.mounts.Unified, "kubepods/poduid-0")
	for _, value := range []uint64{7, 1234567, 3} {
		write(t, filepath.Join(path, "memory.current"), fmt.Sprintln(value))
		usage, err := p.cfg.Reader.Read("/kubepods/poduid-0", Memory)
		if err != nil || usage.Memory != value {
			t.Errorf("read %d, %v, want %d", usage.Memory, err, value)
		}
	}
}

// The network is read through one process of a container for as long as that
// lives, then through another.
func TestNetworkFollowsTheContainer(t *testing.T) {
	p := provider(t, 2, 1, nil)
	rx := func() uint64 {
		t.Helper()
		summary, err := p.Summary(t.Context(), false)
		if err != nil || summary.Pods[0].Network == nil {
			t.Fatalf("no network: %v", err)
		}
		return *summary.Pods[0].Network.RxBytes
	}
	for range 2 { // asked for again, then kept
		if got := rx(); got != 1000000 {
			t.Errorf("received %d, want what the first process sees", got)
		}
	}
	if err := os.RemoveAll(filepath.Join(p.cfg.HostRoot, "proc/4242")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(p.cfg.HostRoot, "proc/4243/net/dev"),
		string(bytes.ReplaceAll([]byte(netDev), []byte("1000000"), []byte("2000000"))))
	for _, name := range []string{"a", "b"} {
		write(t, filepath.Join(p.cfg.Reader.mounts.Unified, "kubepods/poduid-0", fmt.Sprintf("%064d%s", 0, name), "cgroup.procs"), "4243\n")
	}
	if got := rx(); got != 2000000 {
		t.Errorf("received %d, want what the next process sees", got)
	}
	// A container that ended is forgotten with its descriptor.
	status := p.cfg.Pods()[0].Status.ContainerStatuses
	for i := range status {
		status[i].State.Running = nil
	}
	for range 6 {
		if _, err := p.Summary(t.Context(), false); err != nil {
			t.Fatal(err)
		}
	}
	if len(p.places.byID) != 0 {
		t.Errorf("%d ended containers are remembered", len(p.places.byID))
	}
}
