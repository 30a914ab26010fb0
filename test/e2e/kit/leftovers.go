package kit

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/nft/row"
)

// HostState is what a cluster could leave behind.
type HostState struct {
	mounts, links, tables, cgroups, Processes map[string]bool
}

// ReadHostState records the host's state; dir is the data directory, whose name
// marks the processes of the cluster.
func ReadHostState(t testing.TB, dir string) HostState {
	t.Helper()
	m := HostState{mounts: map[string]bool{}, links: map[string]bool{}, tables: map[string]bool{}, cgroups: map[string]bool{},
		Processes: map[string]bool{}}
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, mnt := range mounts {
		m.mounts[mnt.Mountpoint] = true
	}
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		m.links[l.Attrs().Name] = true
	}
	k, err := nft.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	for _, f := range []row.Family{row.V4, row.V6, row.Bridge} {
		tables, err := k.Tables(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range tables {
			m.tables[fmt.Sprintf("%s/%s", f, name)] = true
		}
	}
	err = filepath.WalkDir("/sys/fs/cgroup", func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			m.cgroups[p] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		cmdline, err := os.ReadFile(p)
		if err == nil && strings.Contains(string(cmdline), dir) {
			m.Processes[strings.ReplaceAll(string(cmdline), "\x00", " ")] = true
		}
	}
	return m
}

// foreign says whether a cgroup is that of another cluster, which was there
// before and may go on making some.
func (m HostState) foreign(cgroup string) bool {
	for dir := filepath.Dir(cgroup); dir != "/" && dir != "."; dir = filepath.Dir(dir) {
		if m.cgroups[dir] && strings.HasPrefix(filepath.Base(dir), "berth-") {
			return true
		}
	}
	return false
}

// LeftSince lists what is in m and was not in before.
func (m HostState) LeftSince(before HostState) []string {
	var out []string
	for _, k := range []struct {
		kind     string
		now, old map[string]bool
	}{{"mount", m.mounts, before.mounts}, {"link", m.links, before.links}, {"table", m.tables, before.tables},
		{"cgroup", m.cgroups, before.cgroups}, {"process", m.Processes, before.Processes}} {
		for name := range k.now {
			if !k.old[name] && !before.foreign(name) {
				out = append(out, k.kind+" "+name)
			}
		}
	}
	return out
}
