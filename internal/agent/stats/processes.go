package stats

import (
	"bytes"
	"encoding/binary"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// processFacts are what the processes of a container have open.
type processFacts struct {
	processes, descriptors, sockets uint64
	// openFiles is how many files the first of them may open, -1 for any number.
	openFiles float64
}

// processesOf looks at the processes of a cgroup now. Those that end meanwhile
// are left out.
func (p *Provider) processesOf(path string) *processFacts {
	reader := p.cfg.Reader
	pooled := reader.buffers.Get().(*[]byte)
	defer reader.buffers.Put(pooled)
	facts := &processFacts{}
	procs := filepath.Join(p.cfg.HostRoot, "proc")
	list := bytes.Clone(readFile(filepath.Join(reader.tree(), path, "cgroup.procs"), *pooled))
	eachLine(list, func(line []byte) {
		facts.processes++
		pid := string(line)
		dir := procs + "/" + pid + "/fd"
		descriptors, sockets := openOf(dir, *pooled)
		facts.descriptors += descriptors
		facts.sockets += sockets
		if facts.processes == 1 {
			facts.openFiles = softOpenFiles(readFile(procs+"/"+pid+"/limits", *pooled))
		}
	})
	return facts
}

// openOf counts what a process has open.
func openOf(dir string, buf []byte) (descriptors, sockets uint64) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, 0
	}
	defer unix.Close(fd)
	var link [16]byte
	for {
		n, err := unix.ReadDirent(fd, buf)
		if err != nil || n <= 0 {
			return descriptors, sockets
		}
		eachEntry(buf[:n], func(name []byte) {
			if name[0] < '0' || name[0] > '9' {
				return // "." and ".."
			}
			length, err := unix.Readlinkat(fd, strconv.FormatUint(parseUint(name), 10), link[:])
			if err != nil {
				return // closed meanwhile
			}
			descriptors++
			if bytes.HasPrefix(link[:length], []byte("socket:")) {
				sockets++
			}
		})
	}
}

// eachEntry calls do with each name that the kernel returns of a directory:
// inode and offset (8 bytes each), length of the entry (2), type (1), name.
func eachEntry(entries []byte, do func(name []byte)) {
	const header = 8 + 8 + 2 + 1
	for len(entries) > header {
		length := int(binary.NativeEndian.Uint16(entries[16:]))
		if length <= header || length > len(entries) {
			return
		}
		name := entries[header:length]
		if end := bytes.IndexByte(name, 0); end > 0 {
			do(name[:end])
		}
		entries = entries[length:]
	}
}

// softOpenFiles reads the line "Max open files  1024  4096  files".
func softOpenFiles(text []byte) (limit float64) {
	eachLine(text, func(line []byte) {
		rest, ok := bytes.CutPrefix(line, []byte("Max open files"))
		if !ok {
			return
		}
		fields := strings.Fields(string(rest))
		if len(fields) == 0 {
			return
		}
		value, err := strconv.ParseFloat(fields[0], 64)
		if err != nil {
			value = -1 // unlimited
		}
		limit = value
	})
	return limit
}
