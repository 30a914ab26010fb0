package node

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// HostInfo is what does not change while the host runs.
type HostInfo struct {
	CPUs        int
	MemoryBytes int64
	SwapBytes   int64
	// HugePages maps a page size in bytes to the number of reserved pages.
	HugePages map[int64]int64
	// MaxPIDs is how many processes and threads there can be at one time; 0 if
	// the kernel does not say.
	MaxPIDs int64

	MachineID  string
	SystemUUID string
	BootID     string
	Kernel     string
	OSImage    string
}

// FS is the size of a file system.
type FS struct {
	CapacityBytes int64
	Inodes        int64
}

// ReadHostInfo gathers the facts below root, which is "/" except in tests.
// Identifiers that the host lacks stay empty; missing cpu or memory is an
// error.
func ReadHostInfo(root string) (*HostInfo, error) {
	hostInfo := &HostInfo{
		MachineID: firstText(root, "etc/machine-id", "var/lib/dbus/machine-id"),
		SystemUUID: firstText(root, "sys/class/dmi/id/product_uuid", "proc/device-tree/system-id", "proc/device-tree/vm,uuid",
			"etc/machine-id"),
		BootID:    firstText(root, "proc/sys/kernel/random/boot_id"),
		Kernel:    firstText(root, "proc/sys/kernel/osrelease"),
		OSImage:   osImage(root),
		HugePages: map[int64]int64{},
	}
	if err := hostInfo.readMemory(filepath.Join(root, "proc/meminfo")); err != nil {
		return nil, err
	}
	online, err := os.ReadFile(filepath.Join(root, "sys/devices/system/cpu/online"))
	if err != nil {
		return nil, fmt.Errorf("counting processors: %w", err)
	}
	cpus, err := parseCPUList(strings.TrimSpace(string(online)))
	if err != nil {
		return nil, fmt.Errorf("counting processors: %w", err)
	}
	hostInfo.CPUs = len(cpus)
	hostInfo.MaxPIDs, _ = strconv.ParseInt(firstText(root, "proc/sys/kernel/pid_max"), 10, 64)
	return hostInfo, hostInfo.readHugePages(filepath.Join(root, "sys/kernel/mm/hugepages"))
}

func (m *HostInfo) readMemory(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading memory size: %w", err)
	}
	for line := range bytes.Lines(text) {
		fields := strings.Fields(string(line))
		if len(fields) < 2 {
			continue
		}
		kilobytes, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			continue
		}
		switch fields[0] {
		case "MemTotal:":
			m.MemoryBytes = kilobytes * 1024
		case "SwapTotal:":
			m.SwapBytes = kilobytes * 1024
		}
	}
	if m.MemoryBytes == 0 {
		return fmt.Errorf("reading memory size: no MemTotal in %s", path)
	}
	return nil
}

func (m *HostInfo) readHugePages(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading huge pages: %w", err)
	}
	for _, entry := range entries {
		size, ok := strings.CutPrefix(entry.Name(), "hugepages-")
		size, isKB := strings.CutSuffix(size, "kB")
		kilobytes, err := strconv.ParseInt(size, 10, 64)
		if !ok || !isKB || err != nil {
			continue
		}
		count, err := os.ReadFile(filepath.Join(dir, entry.Name(), "nr_hugepages"))
		if err != nil {
			return fmt.Errorf("reading huge pages: %w", err)
		}
		pages, err := strconv.ParseInt(strings.TrimSpace(string(count)), 10, 64)
		if err != nil {
			return fmt.Errorf("reading huge pages of size %s: %w", size, err)
		}
		m.HugePages[kilobytes*1024] = pages
	}
	return nil
}

// parseCPUList reads the kernel's list format, "0-3,7".
func parseCPUList(text string) ([]int, error) {
	var cpus []int
	if text == "" {
		return nil, nil
	}
	for _, part := range strings.Split(text, ",") {
		low, high, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(low)
		if err != nil {
			return nil, fmt.Errorf("parsing cpu list %q: %w", text, err)
		}
		last := first
		if isRange {
			if last, err = strconv.Atoi(high); err != nil {
				return nil, fmt.Errorf("parsing cpu list %q: %w", text, err)
			}
		}
		if last < first {
			return nil, fmt.Errorf("parsing cpu list %q: %d-%d runs backwards", text, first, last)
		}
		for cpu := first; cpu <= last; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}

func firstText(root string, paths ...string) string {
	for _, path := range paths {
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			continue
		}
		if trimmed := strings.Trim(string(text), " \n\t\x00"); trimmed != "" {
			return trimmed
		}
	}
	return ""
}

func osImage(root string) string {
	for _, path := range []string{"etc/os-release", "usr/lib/os-release"} {
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if value, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
				return strings.Trim(value, `"'`)
			}
		}
	}
	return "Unknown"
}
