package localvolume

import (
	"io/fs"
	"os"
	"sync"
	"syscall"
	"time"
)

// measures remembers what directories hold: anyone who asks for the statistics of
// a node asks for all of its volumes, and often.
type measures struct {
	mu   sync.Mutex
	last map[string]measure
}

type measure struct {
	bytes, inodes int64
	at            time.Time
}

// freshFor is how long a measure may be told.
const freshFor = time.Minute

// usage returns how much the directory holds, measured at most freshFor ago.
func (m *measures) usage(dir string, now time.Time) (measure, error) {
	m.mu.Lock()
	known, ok := m.last[dir]
	m.mu.Unlock()
	if ok && now.Sub(known.at) < freshFor {
		return known, nil
	}
	got, err := walk(dir)
	if err != nil {
		return measure{}, err
	}
	got.at = now
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last == nil {
		m.last = map[string]measure{}
	}
	m.last[dir] = got
	return got, nil
}

func (m *measures) forget(dir string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.last, dir)
}

// walk adds up the blocks of a directory; a file with several names counts
// once.
func walk(dir string) (out measure, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return out, err
	}
	defer root.Close()
	seen := map[uint64]bool{}
	err = fs.WalkDir(root.FS(), ".", func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil // gone meanwhile
		}
		info, err := e.Info()
		if err != nil {
			return nil
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok || st.Nlink > 1 && !e.IsDir() && seen[st.Ino] {
			return nil
		}
		if st.Nlink > 1 && !e.IsDir() {
			seen[st.Ino] = true
		}
		out.bytes += st.Blocks * 512
		out.inodes++
		return nil
	})
	return out, err
}
