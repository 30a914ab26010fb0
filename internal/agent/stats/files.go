package stats

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// keptMost bounds the descriptors that a Reader keeps open: enough for what
	// a summary of 110 pods reads, twice. Each holds some 5 KiB of the kernel's
	// memory. What is beyond is opened for each reading.
	keptMost = 4096
	// keptIdle is how long the files of a cgroup stay open without being read.
	keptIdle = 2 * time.Minute
)

// reader reads cgroup files. It is safe for concurrent use.
//
// Opening and closing a file costs several times what reading it does, so files
// stay open: a reading of a known cgroup is one system call per file, from its
// beginning, for which the kernel makes the text again.
type reader struct {
	mounts  Mounts
	buffers sync.Pool
	// calls counts system calls that read, open or close.
	calls atomic.Int64
	// most is how many descriptors may be kept, see keptMost.
	most int64
	open atomic.Int64

	mu      sync.Mutex
	cgroups map[string]*cgroup
	sweeper *time.Timer // nil while nothing is kept
}

// cgroup is one cgroup with its open files, or a directory of files like it.
type cgroup struct {
	r    *reader
	path string

	mu    sync.Mutex
	files []keptFile
	used  time.Time
	// gone is set when the kernel removed the cgroup under an open file;
	// dropped when the Reader forgot it: anyone who still has it must ask again.
	gone, dropped bool
}

// keptFile is a file of a cgroup in one hierarchy. A descriptor of -1 is a file
// that the kernel does not offer.
type keptFile struct {
	mount, name string
	fd          int
}

// NewReader returns a Reader of the trees at the mounts.
func NewReader(mounts Mounts) *reader {
	return &reader{mounts: mounts, most: keptMost, cgroups: map[string]*cgroup{}, buffers: sync.Pool{New: func() any {
		buf := make([]byte, 16<<10)
		return &buf
	}}}
}

// Read measures the cgroup at path, which is relative to the mounts ("/" is
// the host). Files that the kernel does not offer leave zeros. The error is
// ErrGone if there is no such cgroup.
func (r *reader) Read(path string, parts parts) (usage Usage, err error) {
	err = r.with(path, func(c *cgroup, buf []byte) error {
		usage = Usage{}
		if r.mounts.Unified != "" {
			return c.readV2(parts, &usage, buf)
		}
		return c.readV1(parts, &usage, buf)
	})
	return usage, err
}

// with calls do with the cgroup locked, again if the cgroup turns out to have
// been removed since its files were opened: there may be another of its name.
func (r *reader) with(path string, do func(*cgroup, []byte) error) error {
	pooled := r.buffers.Get().(*[]byte)
	defer r.buffers.Put(pooled)
	for {
		c := r.cgroup(path)
		c.mu.Lock()
		if c.dropped {
			c.mu.Unlock()
			continue
		}
		c.used = time.Now()
		err := do(c, *pooled)
		again := c.gone
		if again || err != nil {
			r.drop(c)
		}
		c.mu.Unlock()
		if !again {
			return err
		}
	}
}

func (r *reader) cgroup(path string) *cgroup {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.cgroups[path]
	if c == nil {
		c = &cgroup{r: r, path: path}
		r.cgroups[path] = c
		if r.sweeper == nil {
			r.sweeper = time.AfterFunc(keptIdle, func() { r.sweep(time.Now()) })
		}
	}
	return c
}

// drop closes a cgroup's files. The caller holds its lock.
func (r *reader) drop(c *cgroup) {
	for _, file := range c.files {
		if file.fd >= 0 {
			unix.Close(file.fd)
			r.open.Add(-1)
		}
	}
	c.files, c.dropped = nil, true
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cgroups[c.path] == c {
		delete(r.cgroups, c.path)
	}
}

// sweep closes the files of cgroups that no one read lately, and comes again
// while any are left.
func (r *reader) sweep(now time.Time) {
	r.mu.Lock()
	all := make([]*cgroup, 0, len(r.cgroups))
	for _, c := range r.cgroups {
		all = append(all, c)
	}
	r.mu.Unlock()
	for _, c := range all {
		c.mu.Lock()
		if !c.dropped && now.Sub(c.used) >= keptIdle {
			r.drop(c)
		}
		c.mu.Unlock()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sweeper = nil
	if len(r.cgroups) > 0 {
		r.sweeper = time.AfterFunc(keptIdle/2, func() { r.sweep(time.Now()) })
	}
}

// exists returns ErrGone if the cgroup is not in the hierarchy at mount. One
// that is not mounted is no error.
func (c *cgroup) exists(mount string) error {
	if mount == "" || slices.ContainsFunc(c.files, func(f keptFile) bool { return f.mount == mount && f.fd >= 0 }) {
		return nil // a removed cgroup says so when it is read
	}
	c.r.calls.Add(1)
	var stat unix.Stat_t
	err := unix.Stat(filepath.Join(mount, c.path), &stat)
	switch {
	case errors.Is(err, unix.ENOENT):
		return ErrGone
	case err != nil:
		return fmt.Errorf("looking at cgroup %s: %w", c.path, err)
	}
	return nil
}

// read returns the file's contents in buf, or nothing if it cannot be read.
func (c *cgroup) read(mount, name string, buf []byte) []byte {
	if mount == "" || c.gone {
		return nil
	}
	for i := range c.files {
		if file := &c.files[i]; file.name == name && file.mount == mount {
			return c.pread(file.fd, buf)
		}
	}
	c.r.calls.Add(1)
	fd, err := unix.Open(filepath.Join(mount, c.path, name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		c.files = append(c.files, keptFile{mount: mount, name: name, fd: -1})
		return nil
	}
	if err != nil {
		return nil
	}
	text := c.pread(fd, buf)
	if c.r.open.Add(1) > c.r.most {
		c.r.open.Add(-1)
		c.r.calls.Add(1)
		unix.Close(fd)
		return text
	}
	c.files = append(c.files, keptFile{mount: mount, name: name, fd: fd})
	return text
}

func (c *cgroup) pread(fd int, buf []byte) []byte {
	if fd < 0 {
		return nil
	}
	filled := 0
	for filled < len(buf) {
		c.r.calls.Add(1)
		n, err := unix.Pread(fd, buf[filled:], int64(filled))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.ENODEV) {
			c.gone = true
		}
		if err != nil {
			return nil
		}
		filled += n
		// The kernel fills the buffer as far as the file goes: a short answer
		// is the last one, except for long files, which come by the page.
		if n < pageSize/2 {
			break
		}
	}
	return buf[:filled]
}

func (c *cgroup) number(mount, name string, buf []byte) uint64 {
	return parseUint(bytes.TrimSpace(c.read(mount, name, buf)))
}
