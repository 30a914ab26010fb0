package network

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// settled is how old a file's last change must be for the same size and time to
// mean the same content: file systems count time in steps.
const settled = 2 * time.Second

// ResolvFile is a resolv.conf that is read once per change. It is safe for
// concurrent use.
type ResolvFile struct {
	path string

	mu     sync.Mutex
	seen   os.FileInfo // of the content in parsed; nil if it must be read again
	parsed Resolver
}

// NewResolvFile reads nothing yet.
func NewResolvFile(path string) *ResolvFile { return &ResolvFile{path: path} }

// Resolver is what the file says now. The caller may change what it gets.
func (f *ResolvFile) Resolver(now time.Time) (Resolver, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.path)
	if err != nil {
		return Resolver{}, fmt.Errorf("reading the node's resolver configuration: %w", err)
	}
	if f.seen == nil || !sameContent(f.seen, info) {
		text, err := os.ReadFile(f.path)
		if err != nil {
			return Resolver{}, fmt.Errorf("reading the node's resolver configuration: %w", err)
		}
		f.parsed, f.seen = ParseResolvConf(string(text)), info
		if now.Sub(info.ModTime()) < settled {
			f.seen = nil
		}
	}
	return Resolver{
		Servers: slices.Clone(f.parsed.Servers), Searches: slices.Clone(f.parsed.Searches), Options: slices.Clone(f.parsed.Options),
	}, nil
}

func sameContent(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
