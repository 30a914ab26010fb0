package nodeauthz

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/berth-dev/berth/internal/control/auth/podref"
)

// cluster is what exists; reaches works out access by searching it, the obvious
// way.
type cluster struct {
	pods    map[podKey]podEntry
	volumes map[string]volumeEntry
}

func (w *cluster) reaches(node string, want podref.Ref) bool {
	for _, pod := range w.pods {
		if pod.node != node {
			continue
		}
		for _, ref := range pod.refs {
			if ref == want {
				return true
			}
			for name, volume := range w.volumes {
				if volume.claim != ref {
					continue
				}
				if want == (podref.Ref{Kind: podref.Volume, Name: name}) {
					return true
				}
				for _, secret := range volume.secrets {
					if secret == want {
						return true
					}
				}
			}
		}
	}
	return false
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

var everything = func() []podref.Ref {
	var all []podref.Ref
	for _, kind := range []podref.Kind{podref.Secret, podref.ConfigMap, podref.Claim, podref.ServiceAccount} {
		for _, name := range []string{"a", "b", "c"} {
			all = append(all, podref.Ref{Kind: kind, Namespace: "ns", Name: name})
		}
	}
	for _, name := range []string{"v1", "v2", "v3"} {
		all = append(all, podref.Ref{Kind: podref.Volume, Name: name})
	}
	return all
}()

func someRefs(r *rand.Rand, of ...podref.Kind) []podref.Ref {
	var refs []podref.Ref
	for _, ref := range everything {
		for _, kind := range of {
			if ref.Kind == kind && r.IntN(3) == 0 {
				refs = append(refs, ref)
			}
		}
	}
	return refs
}

func TestGraphAgreesWithSearch(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 2))
	nodes := []string{"n1", "n2", "n3"}
	for range 300 {
		g, w := newGraph(), &cluster{map[podKey]podEntry{}, map[string]volumeEntry{}}
		before := map[string]int{}
		for step := range 60 {
			pod, volume := podKey{"ns", pick(r, "p", "q", "s")}, pick(r, "v1", "v2", "v3")
			switch r.IntN(5) {
			case 0, 1:
				entry := podEntry{pick(r, append(nodes, "")...), someRefs(r, podref.Secret, podref.ConfigMap, podref.Claim,
					podref.ServiceAccount)}
				g.SetPod(pod, entry.node, entry.refs)
				if w.pods[pod] = entry; entry.node == "" {
					delete(w.pods, pod)
				}
			case 2:
				g.DeletePod(pod)
				delete(w.pods, pod)
			case 3:
				entry := volumeEntry{podref.Ref{Kind: podref.Claim, Namespace: "ns", Name: pick(r, "a", "b", "c", "")},
					someRefs(r, podref.Secret)}
				g.SetVolume(volume, "ns", entry.claim.Name, entry.secrets)
				if w.volumes[volume] = entry; entry.claim.Name == "" {
					delete(w.volumes, volume)
				}
			case 4:
				g.DeleteVolume(volume)
				delete(w.volumes, volume)
			}
			gained := map[string]bool{}
			for _, node := range g.Gained() {
				gained[node] = true
			}
			for _, node := range nodes {
				count := 0
				for _, ref := range everything {
					want := w.reaches(node, ref)
					if got := g.Reaches(node, ref); got != want {
						t.Fatalf("step %d: %s reaches %v: graph says %v, search says %v\n%+v", step, node, ref, got, want, w)
					}
					if want {
						count++
					}
				}
				if count > before[node] && !gained[node] {
					t.Fatalf("step %d: %s reaches more than before and is not among those who gained", step, node)
				}
				before[node] = count
			}
		}
		for pod := range w.pods {
			g.DeletePod(pod)
		}
		for volume := range w.volumes {
			g.DeleteVolume(volume)
		}
		if len(g.pods)+len(g.volumes)+len(g.byClaim)+len(g.holders) != 0 {
			t.Fatalf("after deleting everything the graph still holds %d pods, %d volumes, %d claims, %d objects",
				len(g.pods), len(g.volumes), len(g.byClaim), len(g.holders))
		}
	}
}

func fill(pods int) *graph {
	g := newGraph()
	for i := range pods {
		ns := fmt.Sprintf("ns-%d", i%100)
		g.SetPod(podKey{ns, fmt.Sprintf("p-%d", i)}, fmt.Sprintf("n-%d", i%(pods/30+1)), []podref.Ref{
			{Kind: podref.Secret, Namespace: ns, Name: fmt.Sprintf("s-%d", i)},
			{Kind: podref.ConfigMap, Namespace: ns, Name: "kube-root-ca.crt"},
			{Kind: podref.ServiceAccount, Namespace: ns, Name: "default"},
		})
	}
	g.Gained()
	return g
}

// BenchmarkPodComesAndGoes shows that a change costs the same in a graph of
// any size.
func BenchmarkPodComesAndGoes(b *testing.B) {
	for _, size := range []int{1_000, 150_000} {
		b.Run(fmt.Sprintf("pods=%d", size), func(b *testing.B) {
			g := fill(size)
			refs := []podref.Ref{{Kind: podref.Secret, Namespace: "ns-1", Name: "s"}, {Kind: podref.ConfigMap, Namespace: "ns-1",
				Name: "kube-root-ca.crt"}}
			b.ReportAllocs()
			for b.Loop() {
				g.SetPod(podKey{"ns-1", "new"}, "n-1", refs)
				g.DeletePod(podKey{"ns-1", "new"})
				g.Gained()
			}
		})
	}
}

// BenchmarkFill is the whole cost of starting with a large cluster.
func BenchmarkFill(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		fill(150_000)
	}
}

func BenchmarkReaches(b *testing.B) {
	g := fill(150_000)
	ref := podref.Ref{Kind: podref.ConfigMap, Namespace: "ns-1", Name: "kube-root-ca.crt"}
	b.ReportAllocs()
	for b.Loop() {
		g.Reaches("n-1", ref)
	}
}
