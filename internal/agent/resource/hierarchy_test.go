package resource

import (
	"os"
	"path/filepath"
	"testing"
)

func TestHierarchyHas(t *testing.T) {
	unified := t.TempDir()
	if err := os.WriteFile(filepath.Join(unified, "cgroup.controllers"), []byte("cpuset cpu io memory pids\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name       string
		h          Hierarchy
		controller string
		want       bool
	}{
		{"v1, mounted", Hierarchy{V1: map[string]string{"memory": "/m"}}, "memory", true},
		{"v1, not mounted", Hierarchy{V1: map[string]string{"memory": "/m"}}, "hugetlb", false},
		{"v2, offered", Hierarchy{Unified: unified}, "memory", true},
		{"v2, not offered", Hierarchy{Unified: unified}, "hugetlb", false},
		{"v2, part of another name", Hierarchy{Unified: unified}, "cpus", false},
		{"v2, unreadable", Hierarchy{Unified: filepath.Join(unified, "none")}, "memory", false},
	} {
		if got := tt.h.Has(tt.controller); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
