package host

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// TestRemoveCgroup removes a tree whose members still run, in every hierarchy
// that this host mounts, and nothing beside it.
func TestRemoveCgroup(t *testing.T) {
	const mount, name, other = "/sys/fs/cgroup", "/berth-test-remove", "/berth-test-remove-not"
	made := make(map[string][]string)
	t.Cleanup(func() {
		for _, dirs := range made {
			for _, dir := range dirs {
				os.Remove(dir) //nolint:errcheck // most are gone
			}
		}
	})
	tops, err := filepath.Glob(mount + "/*/cgroup.procs")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(mount + "/cgroup.procs"); err == nil {
		tops = append(tops, mount+"/cgroup.procs")
	}
	for _, top := range tops {
		top = filepath.Dir(top)
		if os.Mkdir(top+other, 0o755) != nil {
			continue // no hierarchy of ours to write
		}
		made[top] = []string{top + name + "/pod/container", top + name + "/pod", top + name, top + other}
		if err := os.MkdirAll(made[top][0], 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if len(made) == 0 {
		t.Fatal("no cgroup can be made here: this test needs root")
	}
	var members []*exec.Cmd
	for range 20 {
		member := exec.Command("sleep", "1000")
		if err := member.Start(); err != nil {
			t.Fatal(err)
		}
		members = append(members, member)
		for _, dirs := range made {
			// A hierarchy may refuse members until it is told their CPUs.
			_ = os.WriteFile(dirs[0]+"/cgroup.procs", []byte(strconv.Itoa(member.Process.Pid)), 0)
		}
	}
	if err := RemoveCgroup(mount, name); err != nil {
		t.Fatal(err)
	}
	for _, member := range members {
		if err := member.Wait(); err == nil || err.Error() != "signal: killed" {
			t.Errorf("a member ended with %v", err)
		}
	}
	for top := range made {
		if _, err := os.Stat(top + name); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", top+name, err)
		}
		if _, err := os.Stat(top + other); err != nil {
			t.Errorf("a neighbour went with it: %v", err)
		}
	}
	if err := RemoveCgroup(mount, name); err != nil {
		t.Errorf("the second time: %v", err)
	}
}

func TestRemoveCgroupRefusesNamesNotOurs(t *testing.T) {
	for _, name := range []string{"", "/", ".", "..", "/..", "../x"} {
		if err := RemoveCgroup(t.TempDir(), name); err == nil {
			t.Errorf("%q is taken", name)
		}
	}
}
