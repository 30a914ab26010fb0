package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	openpgp = `{"id": "GO-2026-5932", "modified": "2026-07-07T22:15:29Z", "affected": [{"package": {"name": "golang.org/x/crypto"},
		"ranges": [{"type": "SEMVER", "events": [{"introduced": "0"}]}]}]}`
	twice = `{"id": "GO-2020-0001", "modified": "2020-01-01T00:00:00Z", "aliases": ["CVE-2020-1"], "affected": [
		{"package": {"name": "example.com/m"}, "ranges": [{"type": "SEMVER", "events": [{"introduced": "0"}, {"fixed": "1.2.3"}]}]},
		{"package": {"name": "example.com/m"}, "ranges": [{"type": "SEMVER", "events": [{"introduced": "2.0.0"}, {"fixed": "2.1.0"}]}]}]}`
)

// TestConvert: the layout is the one that govulncheck reads.
func TestConvert(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	for id, text := range map[string]string{"GO-2026-5932": openpgp, "GO-2020-0001": twice} {
		if err := os.WriteFile(filepath.Join(from, id+".json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := convert(from, to); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	for name, want := range map[string]string{
		"index/db.json": `{"modified":"2026-07-07T22:15:29Z"}`,
		"index/modules.json": `[{"path":"example.com/m","vulns":[{"id":"GO-2020-0001","modified":"2020-01-01T00:00:00Z",` +
			`"fixed":"2.1.0"}]},` +
			`{"path":"golang.org/x/crypto","vulns":[{"id":"GO-2026-5932","modified":"2026-07-07T22:15:29Z"}]}]`,
		"index/vulns.json": `{"id":"GO-2020-0001","modified":"2020-01-01T00:00:00Z","aliases":["CVE-2020-1"]}`,
	} {
		if got, err := os.ReadFile(filepath.Join(to, name)); err != nil || !strings.Contains(string(got), want) {
			t.Errorf("%s: %v\n%s\nwant %s", name, err, got, want)
		}
	}
	if _, err := os.Stat(filepath.Join(to, "ID", "GO-2026-5932.json")); err != nil {
		t.Error(err)
	}
	if _, err := convert(t.TempDir(), to); err == nil {
		t.Error("an empty folder makes a database in which nothing is vulnerable")
	}
}
