package device

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/internal/agent/resource/topology"
)

// giveAll allocates for every container of a pod, near random nodes.
func giveAll(r *rapid.T, ledger *ledger, pod *v1.Pod) bool {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			nodes := topology.Mask(rapid.IntRange(0, 3).Draw(r, "nodes"))
			want, open, err := ledger.Next(pod, &list[i], nodes)
			if err != nil {
				return false
			}
			if !open {
				continue
			}
			ids := want.Choose(rapid.SliceOfN(rapid.StringMatching("[0-9]"), 0, 4).Draw(r, "preferred"))
			if len(ids) != want.Count {
				r.Fatalf("chose %v for %+v", ids, want)
			}
			if err := nearest(ledger, pod, &list[i], nodes, ids); err != nil {
				r.Fatal(err)
			}
			ledger.Give(pod.UID, want.Container, containerDevices{Resource: thing, IDs: ids})
		}
	}
	return true
}

// nearest checks that no one was taken from afar while someone near was free.
func nearest(ledger *ledger, pod *v1.Pod, c *v1.Container, nodes topology.Mask, chosen []string) error {
	if nodes == 0 {
		return nil
	}
	again := ledger.reusable(pod, c.Name, thing)
	rank := func(id string) int {
		switch near := ledger.devices[thing][id].near(); {
		case slices.Contains(again, id) || near&nodes != 0:
			return 0
		case near == 0:
			return 1
		}
		return 2
	}
	farthest := 0
	for _, id := range chosen {
		farthest = max(farthest, rank(id))
	}
	for _, id := range ledger.free(thing) {
		if !slices.Contains(chosen, id) && rank(id) < farthest {
			return fmt.Errorf("chose %v and left %s, which is nearer to %s", chosen, id, nodes)
		}
	}
	return nil
}

// TestNoDeviceIsHeldTwice allocates for random pods and checks the books: two
// containers that can run at the same time never share a device.
func TestNoDeviceIsHeldTwice(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		ledger := newLedger()
		var devices []device
		for i := range rapid.IntRange(0, 10).Draw(r, "devices") {
			devices = append(devices, device{ID: fmt.Sprint(i), Healthy: rapid.Bool().Draw(r, "healthy"),
				NUMA: rapid.SliceOfN(rapid.Int64Range(0, 1), 0, 1).Draw(r, "near")})
		}
		ledger.Know(thing, devices)
		var pods []*v1.Pod
		for i := range rapid.IntRange(1, 6).Draw(r, "pods") {
			counts := rapid.SliceOfN(rapid.Int64Range(0, 4), 0, 3)
			pod := wants(fmt.Sprint("p", i), counts.Draw(r, "inits"), counts.Draw(r, "mains"))
			if giveAll(r, ledger, pod) {
				pods = append(pods, pod)
			} else {
				ledger.Take(pod.UID)
			}
		}
		holder := map[string]types.UID{}
		for _, pod := range pods {
			main := map[string]string{}
			for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
				for i := range list {
					quantity := list[i].Resources.Limits[thing]
					ids := []string{}
					for _, share := range ledger.Held(pod.UID, list[i].Name) {
						ids = append(ids, share.IDs...)
					}
					if int64(len(ids)) != quantity.Value() {
						r.Fatalf("%s/%s holds %v, wants %d", pod.Name, list[i].Name, ids, quantity.Value())
					}
					for _, id := range ids {
						if other, taken := holder[id]; taken && other != pod.UID {
							r.Fatalf("device %s is held by pods %s and %s", id, other, pod.Name)
						}
						holder[id] = pod.UID
						if strings.HasPrefix(list[i].Name, "main") {
							if other, taken := main[id]; taken {
								r.Fatalf("device %s is held by containers %s and %s of %s", id, other, list[i].Name, pod.Name)
							}
							main[id] = list[i].Name
						}
					}
				}
			}
		}
	})
}
