package podcontrol

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

func labelled(name, app string, mods ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID(name), Labels: map[string]string{"app": app}}}
	for _, m := range mods {
		m(p)
	}
	return p
}

func ending(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{} }

func names(pods []*v1.Pod) string {
	var s []string
	for _, p := range pods {
		s = append(s, p.Name)
	}
	return strings.Join(s, " ")
}

// TestClaim: which pods an owner with selector app=web keeps, adopts and releases.
func TestClaim(t *testing.T) {
	web := labels.SelectorFromSet(labels.Set{"app": "web"})
	elsewhere := func(p *v1.Pod) { p.Namespace = "other" }
	for _, c := range []struct {
		why            string
		owner          *v1.Pod // any object serves
		selector       labels.Selector
		owned, orphans []*v1.Pod
		want           string // keep, adopt, release
	}{
		{"nothing", labelled("o", ""), web, nil, nil, "||"},
		{"own and matching", labelled("o", ""), web, []*v1.Pod{labelled("a", "web")}, nil, "a||"},
		{"own, its label was changed", labelled("o", ""), web, []*v1.Pod{labelled("a", "db")}, nil, "||a"},
		{"own and ending", labelled("o", ""), web, []*v1.Pod{labelled("a", "web", ending)}, nil, "a||"},
		{"orphan and matching", labelled("o", ""), web, nil, []*v1.Pod{labelled("a", "web"), labelled("b", "db")}, "|a|"},
		{"orphan that is ending", labelled("o", ""), web, nil, []*v1.Pod{labelled("a", "web", ending)}, "||"},
		{"orphan of another namespace", labelled("o", ""), web, nil, []*v1.Pod{labelled("a", "web", elsewhere)}, "||"},
		{"owner ends: adopts and releases nothing", labelled("o", "", ending), web, []*v1.Pod{labelled("a", "web"), labelled("b", "db")},
			[]*v1.Pod{labelled("c", "web")}, "a||"},
		{"a selector of everything adopts nothing", labelled("o", ""), labels.Everything(), []*v1.Pod{labelled("a", "db")},
			[]*v1.Pod{labelled("b", "web")}, "a||"},
	} {
		keep, adopt, release := Claim(c.owner, c.selector, c.owned, c.orphans)
		if got := names(keep) + "|" + names(adopt) + "|" + names(release); got != c.want {
			t.Errorf("%s: %s, want %s", c.why, got, c.want)
		}
	}
}

// TestOwnerReferences: adopting adds one reference and releasing removes one
// owner's; others' stay, and the object in the cache is not written to.
func TestOwnerReferences(t *testing.T) {
	other := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "other", UID: "other"}
	pod := labelled("a", "web", func(p *v1.Pod) { p.OwnerReferences = append(make([]metav1.OwnerReference, 0, 8), other) })
	ref := Owner(labelled("o", ""), "apps/v1", "ReplicaSet")
	if !*ref.Controller || !*ref.BlockOwnerDeletion || ref.UID != "o" || ref.Kind != "ReplicaSet" || ref.APIVersion != "apps/v1" {
		t.Errorf("reference %+v", ref)
	}
	adopted := *Adopt(pod, ref).Owners
	if len(adopted) != 2 || adopted[0].UID != "other" || adopted[1].UID != "o" {
		t.Errorf("adopted: %+v", adopted)
	}
	if spare := pod.OwnerReferences[:2]; spare[1].UID != "" {
		t.Error("adopting writes into the cached pod's slice")
	}
	pod.OwnerReferences = adopted
	if left := *Release(pod, "o").Owners; len(left) != 1 || left[0].UID != "other" {
		t.Errorf("released: %+v", left)
	}
	if left := *Release(labelled("a", ""), "o").Owners; left == nil {
		t.Error("no owner left must be written as an empty list, and null leaves the field as it is")
	}
}

// TestFromTemplate: a pod is the template's copy with a name of its owner's.
func TestFromTemplate(t *testing.T) {
	template := &v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Name: "ignored", Labels: map[string]string{"app": "web"},
		Annotations: map[string]string{"n": "1"}, Finalizers: []string{"example.com/f"}},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c"}}}}
	pod := FromTemplate(template, "ns", "web-abc", metav1.OwnerReference{UID: "o"})
	if pod.GenerateName != "web-abc-" || pod.Name != "" || pod.Namespace != "ns" || pod.Labels["app"] != "web" ||
		pod.Annotations["n"] != "1" ||
		!slices.Equal(pod.Finalizers, []string{"example.com/f"}) || pod.OwnerReferences[0].UID != "o" ||
		pod.Spec.Containers[0].Name != "c" {
		t.Errorf("pod %+v", pod)
	}
	pod.Labels["app"], pod.Spec.Containers[0].Name = "changed", "changed"
	if template.Labels["app"] != "web" || template.Spec.Containers[0].Name != "c" {
		t.Error("the pod shares memory with the template")
	}
}

// TestBatches: batches double up to 32; the first batch with an error is the last.
func TestBatches(t *testing.T) {
	var mu sync.Mutex
	for _, c := range []struct{ n, bad, done, calls int }{
		{0, -1, 0, 0}, {1, -1, 1, 1}, {100, -1, 100, 100},
		{100, 0, 0, 1},    // a quota that is used up costs one call
		{100, 1, 1, 3},    // 1, 2
		{100, 70, 63, 95}, // 1, 2, 4, 8, 16, 32, 32
	} {
		called := 0
		done, err := Batch(c.n, func(i int) error {
			mu.Lock()
			defer mu.Unlock()
			called++
			if i == c.bad {
				return errors.New("refused")
			}
			return nil
		})
		if done != c.done || called != c.calls || (err != nil) != (c.bad >= 0) {
			t.Errorf("%d calls of which %d fails: %d done, %d called, %v; want %d and %d", c.n, c.bad, done, called, err, c.done, c.calls)
		}
	}
}

// TestBatchCallsEachOnce: whatever fails, every number is called at most once,
// and all below what is reported done.
func TestBatchCallsEachOnce(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		n := rapid.IntRange(0, 200).Draw(r, "n")
		bad := rapid.MapOf(rapid.IntRange(0, 200), rapid.Just(true)).Draw(r, "bad")
		var mu sync.Mutex
		times := map[int]int{}
		done, err := Batch(n, func(i int) error {
			mu.Lock()
			defer mu.Unlock()
			times[i]++
			if bad[i] {
				return fmt.Errorf("%d is refused", i)
			}
			return nil
		})
		for i, k := range times {
			if k != 1 || i >= n {
				r.Fatalf("%d of %d is called %d times", i, n, k)
			}
		}
		for i := range done {
			if times[i] != 1 || bad[i] {
				r.Fatalf("%d is done, but %d was called %d times", done, i, times[i])
			}
		}
		if (err == nil) != (done == n) {
			r.Fatalf("%d of %d done, %v", done, n, err)
		}
	})
}
