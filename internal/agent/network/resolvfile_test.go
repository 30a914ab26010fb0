package network

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestResolvFile: the file is read again when it changed, when another took its
// place (as resolvconf does), and while a change could hide in the same time.
func TestResolvFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	now := time.Now()
	write := func(server string, changed time.Time) {
		t.Helper()
		if err := os.WriteFile(path, []byte("nameserver "+server+"\nsearch a.example\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, changed, changed); err != nil {
			t.Fatal(err)
		}
	}
	f := NewResolvFile(path)
	want := func(why, server string) {
		t.Helper()
		r, err := f.Resolver(now)
		if err != nil || !slices.Equal(r.Servers, []string{server}) || !slices.Equal(r.Searches, []string{"a.example"}) {
			t.Errorf("%s: %+v, %v; want server %s", why, r, err, server)
		}
		r.Searches[0] = "changed by the caller"
	}
	if _, err := f.Resolver(now); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a file that is not there: %v", err)
	}
	old := now.Add(-time.Hour)
	write("192.0.2.1", old)
	want("the first time", "192.0.2.1")
	// Same file, time and length: proof that an unchanged file is not read.
	write("192.0.2.2", old)
	want("an unchanged file", "192.0.2.1")
	write("192.0.2.3", old.Add(time.Second))
	want("a later time", "192.0.2.3")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", nil, 0o600); err != nil { // so that the inode is another
		t.Fatal(err)
	}
	write("192.0.2.4", old.Add(2*time.Second))
	want("another file in its place", "192.0.2.4")
	write("192.0.2.5", now)
	want("a change just now", "192.0.2.5")
	write("192.0.2.6", now)
	want("one more within the same time", "192.0.2.6")
}
