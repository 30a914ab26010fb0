package stats

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// Mounts says where the kernel's cgroup trees are mounted. With Unified set
// the others are not used.
type Mounts struct {
	Unified string
	// The v1 hierarchies; empty if not mounted.
	CPU, CPUAcct, Memory, PIDs, BlkIO string
}

// FindMounts reads the cgroup mounts of this mount namespace. Cgroup v2 counts
// only if it holds the memory controller, as on no hybrid host.
func FindMounts() (Mounts, error) {
	infos, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return Mounts{}, fmt.Errorf("reading cgroup mounts: %w", err)
	}
	var m Mounts
	unified := ""
	for _, info := range infos {
		if info.FSType == "cgroup2" {
			unified = info.Mountpoint
			continue
		}
		for _, option := range strings.Split(info.VFSOptions, ",") {
			for controller, field := range map[string]*string{"cpu": &m.CPU, "cpuacct": &m.CPUAcct, "memory": &m.Memory, "pids": &m.PIDs,
				"blkio": &m.BlkIO} {
				if option == controller && *field == "" {
					*field = info.Mountpoint
				}
			}
		}
	}
	switch {
	case m.Memory != "" && m.CPUAcct != "":
		return m, nil
	case unified != "":
		return Mounts{Unified: unified}, nil
	}
	return m, errors.New("finding cgroups: neither cgroup v2 nor the v1 controllers cpuacct and memory are mounted")
}

// Usage is what one cgroup used. Counters only grow while the cgroup lives.
type Usage struct {
	cpuUsage
	memoryUsage

	// PIDs are tasks, PIDsLimit is zero for none.
	PIDs, PIDsLimit uint64

	ReadBytes, WriteBytes, Reads, Writes uint64
	// Devices are the same by block device.
	Devices []deviceIO

	// Pressure is nil where the kernel does not report it.
	CPUPressure, MemoryPressure, IOPressure *statsapi.PSIStats
}

type cpuUsage struct {
	// CPU times in nanoseconds.
	CPU, CPUUser, CPUSystem uint64
	// Enforcement periods of a cpu limit, and how many of them were throttled.
	Periods, ThrottledPeriods, ThrottledNanos uint64
	// CPUPeriod and CPUQuota are the limit of CPU time, in microseconds; a
	// quota of zero is none.
	CPUPeriod, CPUQuota uint64
}

type memoryUsage struct {
	// Memory in bytes. Limit is zero for none.
	Memory, WorkingSet, RSS, Cache, MappedFile, Swap uint64
	MemoryLimit, SwapLimit                           uint64
	PageFaults, MajorFaults, OOMKills                uint64

	// MemoryPeak is the most that was ever used, LimitHits how often the limit
	// was, Reservation what is protected from reclaim; in bytes.
	MemoryPeak, LimitHits, Reservation uint64
}

// deviceIO is what went to and from one block device.
type deviceIO struct {
	Major, Minor          uint64
	ReadBytes, WriteBytes uint64
}

// parts choose what to read of a cgroup.
type parts uint16

// The parts, to be combined with "|". Each costs files to be read: on a full
// node these add up, so ask for what is shown only.
const (
	// CPU is the time used; how it is divided and throttled is CPUDetail.
	CPU parts = 1 << iota
	CPUDetail
	Memory
	PIDs
	IO
	Pressure
	Swap
	Events
	// Limits are bounds, and how close to them things came.
	Limits
	Everything parts = 0xffff
)

// ErrGone says that a cgroup does not exist (any more).
var ErrGone = errors.New("cgroup does not exist")

const pageSize = 4096

const unlimitedV1 = 1 << 62 // v1 spells "no limit" as a number just below 2^63

// files reads a cgroup's files in one hierarchy; empty for one that is not
// mounted.
type files struct {
	c     *cgroup
	mount string
}

func (f files) read(name string, buf []byte) []byte   { return f.c.read(f.mount, name, buf) }
func (f files) number(name string, buf []byte) uint64 { return f.c.number(f.mount, name, buf) }

func (c *cgroup) readV2(parts parts, usage *Usage, buf []byte) error {
	d := files{c, c.r.mounts.Unified}
	if err := c.exists(d.mount); err != nil {
		return err
	}
	if parts&(CPU|CPUDetail) != 0 {
		eachField(d.read("cpu.stat", buf), func(key []byte, value uint64) {
			switch string(key) {
			case "usage_usec":
				usage.CPU = value * 1000
			case "user_usec":
				usage.CPUUser = value * 1000
			case "system_usec":
				usage.CPUSystem = value * 1000
			case "nr_periods":
				usage.Periods = value
			case "nr_throttled":
				usage.ThrottledPeriods = value
			case "throttled_usec":
				usage.ThrottledNanos = value * 1000
			}
		})
	}
	if parts&Memory != 0 {
		readMemoryV2(d, usage, buf)
	}
	if parts&Swap != 0 {
		usage.Swap = d.number("memory.swap.current", buf)
		usage.SwapLimit = d.number("memory.swap.max", buf)
	}
	if parts&Events != 0 {
		eachField(d.read("memory.events", buf), func(key []byte, value uint64) {
			switch string(key) {
			case "oom_kill":
				usage.OOMKills = value
			case "max":
				usage.LimitHits = value
			}
		})
	}
	if parts&PIDs != 0 {
		usage.PIDs = d.number("pids.current", buf)
	}
	if parts&Limits != 0 {
		usage.MemoryPeak = d.number("memory.peak", buf)
		usage.Reservation = d.number("memory.low", buf)
		usage.PIDsLimit = d.number("pids.max", buf) // "max" parses as 0
		quota, period := cut(d.read("cpu.max", buf), ' ')
		usage.CPUQuota, usage.CPUPeriod = parseUint(quota), parseUint(period)
	}
	if parts&IO != 0 {
		eachLine(d.read("io.stat", buf), func(line []byte) {
			device := deviceIO{}
			device.Major, device.Minor, line = parseDevice(line)
			defer func() { usage.Devices = append(usage.Devices, device) }()
			for len(line) > 0 {
				var pair []byte
				pair, line = cut(line, ' ')
				key, value, found := bytes.Cut(pair, []byte{'='})
				if !found {
					continue
				}
				switch string(key) {
				case "rbytes":
					device.ReadBytes = parseUint(value)
					usage.ReadBytes += device.ReadBytes
				case "wbytes":
					device.WriteBytes = parseUint(value)
					usage.WriteBytes += device.WriteBytes
				case "rios":
					usage.Reads += parseUint(value)
				case "wios":
					usage.Writes += parseUint(value)
				}
			}
		})
	}
	if parts&Pressure != 0 {
		usage.CPUPressure = parsePressure(d.read("cpu.pressure", buf))
		usage.MemoryPressure = parsePressure(d.read("memory.pressure", buf))
		usage.IOPressure = parsePressure(d.read("io.pressure", buf))
	}
	return nil
}

func readMemoryV2(d files, usage *Usage, buf []byte) {
	usage.Memory = d.number("memory.current", buf)
	var inactive, slab uint64
	eachField(d.read("memory.stat", buf), func(key []byte, value uint64) {
		switch string(key) {
		case "anon":
			usage.RSS = value
		case "file":
			usage.Cache = value
		case "file_mapped":
			usage.MappedFile = value
		case "inactive_file":
			inactive = value
		case "slab":
			slab = value
		case "pgfault":
			usage.PageFaults = value
		case "pgmajfault":
			usage.MajorFaults = value
		}
	})
	if usage.Memory == 0 { // the root has no memory.current
		usage.Memory = usage.RSS + usage.Cache + slab
	}
	usage.WorkingSet = below(usage.Memory, inactive)
	usage.MemoryLimit = d.number("memory.max", buf) // "max" parses as 0
}

func (c *cgroup) readV1(parts parts, usage *Usage, buf []byte) error {
	m := &c.r.mounts
	if parts&(CPU|CPUDetail) != 0 {
		d := files{c, m.CPUAcct}
		if err := c.exists(d.mount); err != nil {
			return err
		}
		usage.CPU = d.number("cpuacct.usage", buf)
		if parts&CPUDetail != 0 {
			usage.CPUUser = d.number("cpuacct.usage_user", buf)
			usage.CPUSystem = d.number("cpuacct.usage_sys", buf)
			eachField(c.read(m.CPU, "cpu.stat", buf), func(key []byte, value uint64) {
				switch string(key) {
				case "nr_periods":
					usage.Periods = value
				case "nr_throttled":
					usage.ThrottledPeriods = value
				case "throttled_time":
					usage.ThrottledNanos = value
				}
			})
		}
	}
	if parts&Memory != 0 {
		d := files{c, m.Memory}
		if err := c.exists(d.mount); err != nil {
			return err
		}
		readMemoryV1(d, usage, buf)
		if parts&Events != 0 {
			eachField(d.read("memory.oom_control", buf), func(key []byte, value uint64) {
				if string(key) == "oom_kill" {
					usage.OOMKills = value
				}
			})
		}
	}
	if parts&PIDs != 0 {
		usage.PIDs = c.number(m.PIDs, "pids.current", buf)
	}
	if parts&Limits != 0 {
		usage.MemoryPeak = c.number(m.Memory, "memory.max_usage_in_bytes", buf)
		usage.LimitHits = c.number(m.Memory, "memory.failcnt", buf)
		if soft := c.number(m.Memory, "memory.soft_limit_in_bytes", buf); soft < unlimitedV1 {
			usage.Reservation = soft
		}
		usage.PIDsLimit = c.number(m.PIDs, "pids.max", buf)
		usage.CPUPeriod = c.number(m.CPU, "cpu.cfs_period_us", buf)
		usage.CPUQuota = c.number(m.CPU, "cpu.cfs_quota_us", buf) // -1 parses as 0
	}
	if parts&IO != 0 {
		eachOperation(c.read(m.BlkIO, "blkio.throttle.io_service_bytes_recursive", buf), func(major, minor, read, written uint64) {
			usage.ReadBytes += read
			usage.WriteBytes += written
			last := len(usage.Devices) - 1
			if last < 0 || usage.Devices[last].Major != major || usage.Devices[last].Minor != minor {
				usage.Devices = append(usage.Devices, deviceIO{Major: major, Minor: minor})
				last++
			}
			usage.Devices[last].ReadBytes += read
			usage.Devices[last].WriteBytes += written
		})
		eachOperation(c.read(m.BlkIO, "blkio.throttle.io_serviced_recursive", buf), func(_, _, reads, writes uint64) {
			usage.Reads += reads
			usage.Writes += writes
		})
	}
	if parts&Pressure != 0 && c.path == "/" {
		// Version 1 has no pressure per cgroup; the host's is in /proc.
		usage.CPUPressure = parsePressure(c.read("/proc/pressure", "cpu", buf))
		usage.MemoryPressure = parsePressure(c.read("/proc/pressure", "memory", buf))
		usage.IOPressure = parsePressure(c.read("/proc/pressure", "io", buf))
	}
	return nil
}

func readMemoryV1(d files, usage *Usage, buf []byte) {
	usage.Memory = d.number("memory.usage_in_bytes", buf)
	var inactive uint64
	eachField(d.read("memory.stat", buf), func(key []byte, value uint64) {
		switch string(key) {
		case "total_rss":
			usage.RSS = value
		case "total_cache":
			usage.Cache = value
		case "total_mapped_file":
			usage.MappedFile = value
		case "total_swap":
			usage.Swap = value
		case "total_inactive_file":
			inactive = value
		case "total_pgfault":
			usage.PageFaults = value
		case "total_pgmajfault":
			usage.MajorFaults = value
		}
	})
	usage.WorkingSet = below(usage.Memory, inactive)
	if limit := d.number("memory.limit_in_bytes", buf); limit < unlimitedV1 {
		usage.MemoryLimit = limit
	}
}

// firstPID returns the first process in the cgroup, or 0. The list is opened
// each time: version 1 keeps showing an open file the list it made for it.
func (r *reader) firstPID(path string) int {
	r.calls.Add(3)
	line, _ := cut(readFile(filepath.Join(r.tree(), path, "cgroup.procs"), make([]byte, 64)), '\n')
	return int(parseUint(line))
}

// tree is the mount whose directories list the cgroups.
func (r *reader) tree() string {
	if r.mounts.Unified != "" {
		return r.mounts.Unified
	}
	return r.mounts.Memory
}

func below(value, part uint64) uint64 {
	if part > value {
		return 0
	}
	return value - part
}

// eachField calls do for each "key value" line.
func eachField(text []byte, do func(key []byte, value uint64)) {
	eachLine(text, func(line []byte) {
		if space := bytes.IndexByte(line, ' '); space > 0 {
			do(line[:space], parseUint(line[space+1:]))
		}
	})
}

func eachLine(text []byte, do func(line []byte)) {
	for len(text) > 0 {
		var line []byte
		line, text = cut(text, '\n')
		do(line)
	}
}

// eachOperation reads "8:0 Read 4096" lines.
func eachOperation(text []byte, do func(major, minor, read, written uint64)) {
	eachLine(text, func(line []byte) {
		major, minor, rest := parseDevice(line)
		operation, value := cut(rest, ' ')
		switch string(operation) {
		case "Read":
			do(major, minor, parseUint(value), 0)
		case "Write":
			do(major, minor, 0, parseUint(value))
		}
	})
}

// parseDevice reads "8:0 " at the beginning of a line.
func parseDevice(line []byte) (major, minor uint64, rest []byte) {
	device, rest := cut(line, ' ')
	left, right := cut(device, ':')
	return parseUint(left), parseUint(right), rest
}

func cut(text []byte, at byte) (before, after []byte) {
	if i := bytes.IndexByte(text, at); i >= 0 {
		return text[:i], text[i+1:]
	}
	return text, nil
}

// parseUint reads leading digits; anything else is 0.
func parseUint(text []byte) uint64 {
	value := uint64(0)
	for _, char := range text {
		if char < '0' || char > '9' {
			break
		}
		value = value*10 + uint64(char-'0')
	}
	return value
}

// parsePressure reads "some avg10=0.00 avg60=0.00 avg300=0.00 total=0" and the
// same for "full".
func parsePressure(text []byte) *statsapi.PSIStats {
	if len(text) == 0 {
		return nil
	}
	pressure := &statsapi.PSIStats{}
	eachLine(text, func(line []byte) {
		kind, rest := cut(line, ' ')
		into := &pressure.Some
		if string(kind) == "full" {
			into = &pressure.Full
		}
		for len(rest) > 0 {
			var pair []byte
			pair, rest = cut(rest, ' ')
			key, value := cut(pair, '=')
			switch string(key) {
			case "avg10":
				into.Avg10 = parseFloat(value)
			case "avg60":
				into.Avg60 = parseFloat(value)
			case "avg300":
				into.Avg300 = parseFloat(value)
			case "total":
				into.Total = parseUint(value)
			}
		}
	})
	return pressure
}

func parseFloat(text []byte) float64 {
	value, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return 0
	}
	return value
}
