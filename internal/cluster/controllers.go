package cluster

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-dev/berth/internal/control/workload"
	"github.com/berth-dev/berth/internal/nodes"
)

// chooseControllers reads --controllers as kube-controller-manager does: "*" is
// all, "name" adds one, "-name" leaves one out, no word means all, and of
// several words about one controller the first counts. What it returns has one
// word for each node and each workload controller.
func chooseControllers(words []string) (node, work []string, err error) {
	aliases, known := nodes.Aliases(), slices.Concat(nodes.Names(), workload.Names())
	all := len(words) == 0 || slices.Contains(words, "*")
	chosen := map[string]bool{}
	for _, w := range words {
		if w == "*" {
			continue
		}
		name, off := strings.CutPrefix(w, "-")
		if long, ok := aliases[name]; ok {
			name = long
		}
		if !slices.Contains(known, name) {
			return nil, nil, fmt.Errorf("--controllers: %q is not one of *, %s", name, strings.Join(known, ", "))
		}
		if _, said := chosen[name]; !said {
			chosen[name] = !off
		}
	}
	each := func(names []string) (out []string) {
		for _, name := range names {
			on, said := chosen[name]
			if on || !said && all {
				out = append(out, name)
			} else {
				out = append(out, "-"+name)
			}
		}
		return out
	}
	return each(nodes.Names()), each(workload.Names()), nil
}
