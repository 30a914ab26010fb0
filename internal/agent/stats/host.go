package stats

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hostInfo is what does not change while the host runs.
type hostInfo struct {
	bootTime    time.Time
	memoryBytes uint64
	swapBytes   uint64
	cores       int
	// kernel and system are versions, empty if the host does not say.
	kernel, system string
}

func readHostInfo(root string) (hostInfo, error) {
	var m hostInfo
	stat, err := os.ReadFile(filepath.Join(root, "proc/stat"))
	if err != nil {
		return m, fmt.Errorf("reading the boot time: %w", err)
	}
	eachLine(stat, func(line []byte) {
		key, rest := cut(line, ' ')
		switch {
		case string(key) == "btime":
			m.bootTime = time.Unix(int64(parseUint(rest)), 0)
		case len(key) > 3 && bytes.HasPrefix(key, []byte("cpu")):
			m.cores++
		}
	})
	info, err := readMeminfo(root)
	if err != nil {
		return m, err
	}
	m.memoryBytes, m.swapBytes = info["MemTotal"], info["SwapTotal"]
	m.kernel, m.system = versions(root)
	return m, nil
}

// versions are those of kernel and distribution.
func versions(root string) (kernel, system string) {
	if text, err := os.ReadFile(filepath.Join(root, "proc/sys/kernel/osrelease")); err == nil {
		kernel = strings.TrimSpace(string(text))
	}
	if text, err := os.ReadFile(filepath.Join(root, "etc/os-release")); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
				system = strings.Trim(strings.TrimSpace(name), `"`)
			}
		}
	}
	return kernel, system
}

func readMeminfo(root string) (map[string]uint64, error) {
	text, err := os.ReadFile(filepath.Join(root, "proc/meminfo"))
	if err != nil {
		return nil, fmt.Errorf("reading memory: %w", err)
	}
	values := map[string]uint64{}
	eachLine(text, func(line []byte) {
		key, rest := cut(line, ':')
		values[string(key)] = parseUint(bytes.TrimSpace(rest)) * 1024
	})
	return values, nil
}

// processes returns how many tasks run and how many there may be.
func processes(root string) (running, limit int64) {
	text, err := os.ReadFile(filepath.Join(root, "proc/loadavg"))
	if err == nil {
		fields := strings.Fields(string(text))
		if len(fields) >= 4 {
			_, total, _ := strings.Cut(fields[3], "/")
			running, _ = strconv.ParseInt(total, 10, 64)
		}
	}
	for _, name := range []string{"pid_max", "threads-max"} {
		text, err := os.ReadFile(filepath.Join(root, "proc/sys/kernel", name))
		if err != nil {
			continue
		}
		value := int64(parseUint(bytes.TrimSpace(text)))
		if value > 0 && (limit == 0 || value < limit) {
			limit = value
		}
	}
	return running, limit
}

// netInterface is what went through one network interface.
type netInterface struct {
	name                                    string
	rxBytes, rxPackets, rxErrors, rxDropped uint64
	txBytes, txPackets, txErrors, txDropped uint64
}

// readNetwork reads the interfaces that a process sees.
func readNetwork(proc string, pid int) []netInterface {
	return parseNetwork(readFile(filepath.Join(proc, strconv.Itoa(pid), "net/dev"), make([]byte, 16<<10)))
}

// parseNetwork reads a net/dev, without loopback and what does not count as
// the pod's own.
func parseNetwork(text []byte) []netInterface {
	var list []netInterface
	eachLine(text, func(line []byte) {
		name, rest, ok := bytes.Cut(line, []byte{':'})
		name = bytes.TrimSpace(name)
		if !ok || string(name) == "lo" || bytes.HasPrefix(name, []byte("veth")) || bytes.HasPrefix(name, []byte("docker")) {
			return
		}
		var numbers [16]uint64
		for i := range numbers {
			rest = bytes.TrimLeft(rest, " ")
			var field []byte
			field, rest = cut(rest, ' ')
			numbers[i] = parseUint(field)
		}
		list = append(list, netInterface{name: string(name),
			rxBytes: numbers[0], rxPackets: numbers[1], rxErrors: numbers[2], rxDropped: numbers[3],
			txBytes: numbers[8], txPackets: numbers[9], txErrors: numbers[10], txDropped: numbers[11]})
	})
	return list
}

// fsUsage is the size of a file system.
type fsUsage struct {
	capacity, available, used      uint64
	inodes, inodesFree, inodesUsed uint64
}

func statFS(path string) (fsUsage, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil {
		return fsUsage{}, fmt.Errorf("measuring the file system of %s: %w", path, err)
	}
	size := uint64(stat.Bsize)
	return fsUsage{
		capacity: stat.Blocks * size, available: stat.Bavail * size, used: (stat.Blocks - stat.Bfree) * size,
		inodes: stat.Files, inodesFree: stat.Ffree, inodesUsed: stat.Files - stat.Ffree,
	}, nil
}

// OwnCgroup is the cgroup that this process is in, empty for the root of the
// tree: that is the host.
func OwnCgroup(m Mounts) string {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	return cgroupOf(text, m.Unified != "")
}

// cgroupOf reads "0::/path" of version 2, or "4:memory:/path" of version 1.
func cgroupOf(text []byte, unified bool) (path string) {
	eachLine(text, func(line []byte) {
		_, rest := cut(line, ':')
		controllers, place := cut(rest, ':')
		if unified && len(controllers) == 0 || !unified && slices.Contains(strings.Split(string(controllers), ","), "memory") {
			path = string(place)
		}
	})
	if path == "/" {
		return ""
	}
	return path
}
