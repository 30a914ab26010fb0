package userns

import (
	"strings"
	"testing"
)

func TestAgree(t *testing.T) {
	file := func(text string) ([]span, error) { return parseSubFile(text, "kubelet", "998") }
	for _, test := range []struct {
		name, users, groups string
		parse               func(string) ([]span, error)
		first, count        uint64
		err                 string
	}{
		{"nothing set aside", "", "", parseSubids, 0, 0, ""},
		{"one range", "0: kubelet 65536 7208960\n", "0: kubelet 65536 7208960\n", parseSubids, 65536, 7208960, ""},
		{"files, by name and by number", "root:1:2\nkubelet:131072:655360\n", "998:131072:655360\n", file, 131072, 655360, ""},
		{"users and groups differ", "0: kubelet 65536 65536", "0: kubelet 131072 65536", parseSubids, 0, 0, "want the same range"},
		{"two ranges", "0: kubelet 65536 65536\n1: kubelet 262144 65536", "0: kubelet 65536 65536", parseSubids, 0, 0,
			"2 ranges of subordinate users and 1 of groups"},
		{"only users", "0: kubelet 65536 65536", "", parseSubids, 0, 0, "1 ranges of subordinate users and 0 of groups"},
		{"somebody else", "0: root 65536 65536", "", parseSubids, 0, 0, "getsubids said"},
		{"no number", "0: kubelet x 65536", "", parseSubids, 0, 0, "invalid syntax"},
		{"too large", "kubelet:4294967296:1", "", file, 0, 0, "out of range"},
	} {
		t.Run(test.name, func(t *testing.T) {
			first, count, err := agree(test.users, test.groups, test.parse)
			if first != test.first || count != test.count || (err == nil) != (test.err == "") || err != nil &&
				!strings.Contains(err.Error(), test.err) {
				t.Errorf("got %d, %d, %v", first, count, err)
			}
		})
	}
}

func TestRangeMustHoldAllPods(t *testing.T) {
	cfg := Config{RootDir: t.TempDir(), First: Block, Count: 3 * Block, Pods: 4}
	if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), "4 pods") {
		t.Errorf("a range for 3 pods of 4: %v", err)
	}
	cfg.Pods = 3
	if _, err := Open(cfg); err != nil {
		t.Error(err)
	}
}

func FuzzSubids(f *testing.F) {
	f.Add("0: kubelet 65536 7208960\n")
	f.Add("kubelet:65536:7208960\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, parse := range []func(string) ([]span, error){parseSubids, func(s string) ([]span, error) {
			return parseSubFile(s, "kubelet",
				"998")
		}} {
			list, err := parse(text)
			for _, s := range list {
				if err == nil && (s.first >= 1<<32 || s.count >= 1<<33) {
					t.Errorf("%q gave %v", text, s)
				}
			}
		}
	})
}
