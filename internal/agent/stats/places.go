package stats

import (
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// places remembers what does not change while a container runs: its cgroup, and
// the process whose network it sees.
type places struct {
	mu    sync.Mutex
	byID  map[string]*place
	round uint64 // counts readings of all pods
}

// place is where one container is found.
type place struct {
	path string // its cgroup
	seen uint64 // round that last asked; guarded by places.mu

	mu sync.Mutex
	// proc is the open /proc/PID of the container's first process, 0 if not
	// known. It goes on meaning that process when its number is another's.
	proc   int
	closed bool
}

func (l *places) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.round++
}

// forget drops containers that the last readings did not meet. Those that run
// at the same time as this one may be a few rounds behind.
func (l *places) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, place := range l.byID {
		if place.seen+4 < l.round {
			place.close()
			delete(l.byID, id)
		}
	}
}

// get returns the place of a container, nil if it is not known.
func (l *places) get(id string) *place {
	l.mu.Lock()
	defer l.mu.Unlock()
	place := l.byID[id]
	if place != nil {
		place.seen = l.round
	}
	return place
}

func (l *places) add(id, path string) *place {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byID == nil {
		l.byID = map[string]*place{}
	}
	if known := l.byID[id]; known != nil {
		return known
	}
	place := &place{path: path, seen: l.round}
	l.byID[id] = place
	return place
}

// finder finds the cgroups of a pod's containers, listing them at most once.
type finder struct {
	p        *Provider
	pod      string // path of the pod's cgroup
	listed   bool
	children []string
}

// container returns nil if the container has no cgroup.
func (f *finder) container(id string) *place {
	if id == "" {
		return nil
	}
	if known := f.p.places.get(id); known != nil {
		return known
	}
	if !f.listed {
		f.children, f.listed = f.p.children(f.pod), true
	}
	child := findChild(f.children, id)
	if child == "" {
		return nil
	}
	return f.p.places.add(id, f.pod+"/"+child)
}

// network reads the interfaces that a container sees; nil if its process is
// gone.
func (l *places) network(p *Provider, place *place) []netInterface {
	reader := p.cfg.Reader
	place.mu.Lock()
	defer place.mu.Unlock()
	pooled := reader.buffers.Get().(*[]byte)
	defer reader.buffers.Put(pooled)
	if place.proc != 0 {
		reader.calls.Add(3)
		if text := readFileAt(place.proc, "net/dev", *pooled); len(text) > 0 {
			return parseNetwork(text)
		}
	}
	place.shut() // unknown, or the process ended: look for another
	pid := reader.firstPID(place.path)
	if pid == 0 || place.closed {
		return nil
	}
	reader.calls.Add(4)
	fd, err := unix.Open(filepath.Join(p.cfg.HostRoot, "proc", strconv.Itoa(pid)), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	place.proc = fd
	return parseNetwork(readFileAt(fd, "net/dev", *pooled))
}

func (p *place) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.shut()
}

func (p *place) shut() {
	if p.proc != 0 {
		unix.Close(p.proc)
		p.proc = 0
	}
}

// readFile returns as much of the file as fits buf, or nothing if it cannot be
// read.
func readFile(path string, buf []byte) []byte { return readFileAt(unix.AT_FDCWD, path, buf) }

func readFileAt(dir int, path string, buf []byte) []byte {
	fd, err := unix.Openat(dir, path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	filled := 0
	for filled < len(buf) {
		n, err := unix.Read(fd, buf[filled:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil
		}
		filled += n
		if n < pageSize/2 {
			break
		}
	}
	return buf[:filled]
}
