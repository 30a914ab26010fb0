package e2e

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

// machine is what a cluster could leave behind.
type machine struct {
	mounts, links, tables, cgroups, processes map[string]bool
}

// look records the machine's state; dir is the data directory, whose name
// marks the processes of the cluster.
func look(t testing.TB, dir string) machine {
	t.Helper()
	m := machine{mounts: map[string]bool{}, links: map[string]bool{}, tables: map[string]bool{}, cgroups: map[string]bool{},
		processes: map[string]bool{}}
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
			m.processes[strings.ReplaceAll(string(cmdline), "\x00", " ")] = true
		}
	}
	return m
}

// foreign says whether a cgroup is that of another cluster, which was there
// before and may go on making some.
func (m machine) foreign(cgroup string) bool {
	for dir := filepath.Dir(cgroup); dir != "/" && dir != "."; dir = filepath.Dir(dir) {
		if m.cgroups[dir] && strings.HasPrefix(filepath.Base(dir), "berth-") {
			return true
		}
	}
	return false
}

// left lists what is in m and was not in before.
func (m machine) left(before machine) []string {
	var out []string
	for _, k := range []struct {
		kind     string
		now, old map[string]bool
	}{{"mount", m.mounts, before.mounts}, {"link", m.links, before.links}, {"table", m.tables, before.tables},
		{"cgroup", m.cgroups, before.cgroups}, {"process", m.processes, before.processes}} {
		for name := range k.now {
			if !k.old[name] && !before.foreign(name) {
				out = append(out, k.kind+" "+name)
			}
		}
	}
	return out
}
