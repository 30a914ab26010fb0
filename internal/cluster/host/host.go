// Package host finds out what this host allows: cgroup layout, the right to
// lower OOM scores, systemd. Its answers shape the runtime's configuration and
// are shown by `berth status`, so that a limit of the host is never a
// surprise.
package host

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Cgroups says which cgroup layout controllers are on.
type Cgroups string

const (
	// CgroupV2 is the unified hierarchy alone.
	CgroupV2 Cgroups = "v2"
	// CgroupV1 has its controllers on v1 hierarchies and no v2 mount.
	CgroupV1 Cgroups = "v1"
	// CgroupHybrid has its controllers on v1 and a v2 mount beside them.
	CgroupHybrid Cgroups = "hybrid"
)

// Facts is what Probe learned. It is plain data, safe to copy.
type Facts struct {
	Cgroups     Cgroups
	Controllers []string
	// LowersOOMScore is false where the kernel refuses a lower oom_score_adj
	// (CAP_SYS_RESOURCE is missing, as in many containers).
	LowersOOMScore bool
	// Systemd is true where systemd runs and owns the cgroup tree.
	Systemd bool
	// Hugetlb is true where the hugetlb controller can be used.
	Hugetlb bool
	BootID  string
	Root    bool
}

// needed are the controllers without which no container can be limited.
var needed = []string{"cpu", "memory", "pids"}

// Probe reads the facts below root ("/" on a real host; tests give a
// recorded tree).
func Probe(root string) (Facts, error) {
	f := Facts{Root: os.Geteuid() == 0}
	var err error
	if f.Cgroups, f.Controllers, err = cgroups(root); err != nil {
		return f, err
	}
	f.Hugetlb = slices.Contains(f.Controllers, "hugetlb")
	if _, err := os.Stat(filepath.Join(root, "run/systemd/system")); err == nil {
		f.Systemd = true
	}
	id, err := os.ReadFile(filepath.Join(root, "proc/sys/kernel/random/boot_id"))
	if err != nil {
		return f, fmt.Errorf("reading the boot id: %w", err)
	}
	f.BootID = strings.TrimSpace(string(id))
	if f.LowersOOMScore, err = hasCapability(filepath.Join(root, "proc/self/status"), unix.CAP_SYS_RESOURCE); err != nil {
		return f, err
	}
	return f, nil
}

// Missing lists the needed controllers that the host lacks.
func (f Facts) Missing() []string {
	var out []string
	for _, c := range needed {
		if !slices.Contains(f.Controllers, c) {
			out = append(out, c)
		}
	}
	return out
}

// Notes are the limits a user should know of, one sentence each.
func (f Facts) Notes() []string {
	var out []string
	if f.Cgroups != CgroupV2 {
		out = append(out, fmt.Sprintf("cgroup controllers are on v1 hierarchies (%s): memory of tmpfs volumes and swap limits follow "+
			"v1 rules", f.Cgroups))
	}
	if !f.LowersOOMScore {
		out = append(out, "CAP_SYS_RESOURCE is missing: OOM scores below the runtime's own are not applied, so guaranteed pods are not "+
			"preferred when the host runs out of memory")
	}
	return out
}

func cgroups(root string) (Cgroups, []string, error) {
	if data, err := os.ReadFile(filepath.Join(root, "sys/fs/cgroup/cgroup.controllers")); err == nil {
		return CgroupV2, strings.Fields(string(data)), nil
	}
	f, err := os.Open(filepath.Join(root, "proc/self/mountinfo"))
	if err != nil {
		return "", nil, fmt.Errorf("reading mounts: %w", err)
	}
	defer f.Close()
	return parseMounts(f)
}

// parseMounts reads mountinfo: the fields after the separator are the
// filesystem type, its source and the superblock options, which name the v1
// controllers.
func parseMounts(r io.Reader) (Cgroups, []string, error) {
	mode := CgroupV1
	var controllers []string
	sc := bufio.NewScanner(r)
	for sc.Scan() {
		_, tail, ok := strings.Cut(sc.Text(), " - ")
		if !ok {
			continue
		}
		fields := strings.Fields(tail)
		if len(fields) < 3 {
			continue
		}
		switch fields[0] {
		case "cgroup2":
			mode = CgroupHybrid
		case "cgroup":
			for _, o := range strings.Split(fields[2], ",") {
				if o != "rw" && o != "ro" && o != "xattr" && !strings.Contains(o, "=") && !slices.Contains(controllers, o) {
					controllers = append(controllers, o)
				}
			}
		}
	}
	if err := sc.Err(); err != nil {
		return "", nil, fmt.Errorf("reading mounts: %w", err)
	}
	return mode, controllers, nil
}

func hasCapability(statusFile string, bit uint) (bool, error) {
	data, err := os.ReadFile(statusFile)
	if err != nil {
		return false, fmt.Errorf("reading capabilities: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		hexa, ok := strings.CutPrefix(line, "CapEff:")
		if !ok {
			continue
		}
		set, err := strconv.ParseUint(strings.TrimSpace(hexa), 16, 64)
		if err != nil {
			return false, fmt.Errorf("reading capabilities: %q: %w", strings.TrimSpace(line), err)
		}
		return set&(1<<bit) != 0, nil
	}
	return false, fmt.Errorf("reading capabilities: %s has no CapEff line", statusFile)
}

// DefaultDataDir is where a cluster lives unless told otherwise.
const DefaultDataDir = "/var/lib/berth"

// Instance is the short name that everything outside the data directory
// carries (bridge, cgroup, kernel tables): "berth" for the default data
// directory, "berth-" and eight hex digits of its path otherwise. Two clusters
// with different data directories therefore never share a kernel object.
func Instance(dataDir string) string {
	if dataDir == DefaultDataDir {
		return "berth"
	}
	sum := sha256.Sum256([]byte(dataDir))
	return "berth-" + hex.EncodeToString(sum[:4])
}
