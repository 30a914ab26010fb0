package cluster

import (
	"slices"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/control/workload"
	"github.com/berth-dev/berth/internal/nodes"
)

func TestChooseControllers(t *testing.T) {
	running := func(words ...string) []string {
		t.Helper()
		node, work, err := chooseControllers(words)
		if err != nil {
			t.Fatal(err)
		}
		if len(node) != len(nodes.Names()) || len(work) != len(workload.Names()) {
			t.Errorf("%v: not a word for each controller: %v, %v", words, node, work)
		}
		return slices.DeleteFunc(slices.Concat(node, work), func(w string) bool { return strings.HasPrefix(w, "-") })
	}
	all := slices.Concat(nodes.Names(), workload.Names())
	without := func(names ...string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(n string) bool { return slices.Contains(names, n) })
	}
	for _, c := range []struct {
		words string
		want  []string
	}{
		{"", all},
		{"*", all},
		{"*,-nodelifecycle,-job-controller", without("node-lifecycle-controller", "job-controller")},
		{"-podgc,*,podgc", without("pod-garbage-collector-controller")},
		{"job-controller", []string{"job-controller"}},
		{"ttl", []string{"ttl-controller"}},
		{"-ttl", nil},
	} {
		words := strings.FieldsFunc(c.words, func(r rune) bool { return r == ',' })
		if got := running(words...); !slices.Equal(got, c.want) {
			t.Errorf("%q runs %v, want %v", c.words, got, c.want)
		}
	}
	if _, _, err := chooseControllers([]string{"*", "-nodes"}); err == nil || !strings.Contains(err.Error(), `"nodes"`) || !strings.Contains(err.Error(), "node-ipam-controller") {
		t.Errorf("an unknown name: %v", err)
	}
}
