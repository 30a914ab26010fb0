package resourceclaim

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func pod(name, node string, phase v1.PodPhase, deleted bool) *v1.Pod {
	template := "t"
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID("uid-" + name)},
		Spec:   v1.PodSpec{NodeName: node, ResourceClaims: []v1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &template}}},
		Status: v1.PodStatus{Phase: phase}}
	if deleted {
		at := metav1.NewTime(time.Unix(1, 0))
		p.DeletionTimestamp = &at
	}
	return p
}

func claim(mods ...func(*resourceapi.ResourceClaim)) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "ns"}}
	for _, m := range mods {
		m(c)
	}
	return c
}

func usedBy(names ...string) func(*resourceapi.ResourceClaim) {
	return func(c *resourceapi.ResourceClaim) {
		for _, n := range names {
			c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: n,
				UID: types.UID("uid-" + n)})
		}
	}
}

func allocated(c *resourceapi.ResourceClaim) {
	c.Status.Allocation = &resourceapi.AllocationResult{}
	c.Finalizers = []string{"other", resourceapi.Finalizer}
}

func leaving(c *resourceapi.ResourceClaim) {
	at := metav1.NewTime(time.Unix(1, 0))
	c.DeletionTimestamp = &at
}

func madeFor(name string) func(*resourceapi.ResourceClaim) {
	yes := true
	return func(c *resourceapi.ResourceClaim) {
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: name, UID: types.UID("uid-" + name),
			Controller: &yes}}
	}
}

func TestTidy(t *testing.T) {
	pods := map[types.UID]*v1.Pod{}
	for _, p := range []*v1.Pod{pod("runs", "n", v1.PodRunning, false), pod("waits", "", v1.PodPending, false),
		pod("done", "n", v1.PodSucceeded, false),
		pod("failed", "n", v1.PodFailed, false), pod("stopping", "n", v1.PodRunning, true), pod("unplaced", "", v1.PodPending, true)} {
		pods[p.UID] = p
	}
	find := func(_ string, uid types.UID) *v1.Pod { return pods[uid] }
	for name, c := range map[string]struct {
		claim *resourceapi.ResourceClaim
		want  cleanup
		users string
	}{
		"in use":                       {claim(allocated, usedBy("runs")), cleanup{}, "runs"},
		"in use by one that stops":     {claim(allocated, usedBy("stopping")), cleanup{}, "stopping"},
		"reserved by one that waits":   {claim(allocated, usedBy("waits")), cleanup{}, "waits"},
		"one user of two is done":      {claim(allocated, usedBy("done", "runs")), cleanup{Status: true}, "runs"},
		"the last user is done":        {claim(allocated, usedBy("done", "failed")), cleanup{Status: true, Deallocate: true}, ""},
		"the user is gone":             {claim(allocated, usedBy("vanished")), cleanup{Status: true, Deallocate: true}, ""},
		"the user never got to a node": {claim(allocated, usedBy("unplaced")), cleanup{Status: true, Deallocate: true}, ""},
		"allocated, no user yet":       {claim(allocated), cleanup{}, ""},
		"never allocated":              {claim(), cleanup{}, ""},
		"deleted while in use":         {claim(allocated, leaving, usedBy("runs")), cleanup{}, "runs"},
		"deleted, user done": {claim(allocated, leaving, usedBy("done")), cleanup{Status: true, Deallocate: true,
			Unprotect: true}, ""},
		"deleted, no user":       {claim(allocated, leaving), cleanup{Status: true, Deallocate: true, Unprotect: true}, ""},
		"made for a running pod": {claim(allocated, madeFor("runs"), usedBy("runs")), cleanup{}, "runs"},
		"made for a pod that is done": {claim(allocated, madeFor("done"), usedBy("done")), cleanup{Status: true, Deallocate: true,
			Delete: true}, ""},
		"made for a pod that is gone": {claim(madeFor("vanished")), cleanup{Delete: true}, ""},
		"made for one that waits":     {claim(madeFor("waits")), cleanup{}, ""},
	} {
		got := planCleanup(c.claim, find)
		var users []string
		for _, u := range got.Users {
			users = append(users, u.Name)
		}
		if got.Status != c.want.Status || got.Deallocate != c.want.Deallocate || got.Unprotect != c.want.Unprotect ||
			got.Delete != c.want.Delete || strings.Join(users, ",") != c.users {
			t.Errorf("%s: %+v, want %+v with users %q", name, got, c.want, c.users)
		}
		if (got.Deallocate && c.claim.DeletionTimestamp == nil || got.Delete) && got.Because == "" {
			t.Errorf("%s: no cause given", name)
		}
	}
	other := claim(allocated, func(c *resourceapi.ResourceClaim) {
		c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{APIGroup: "example.org", Resource: "things", Name: "x",
			UID: "x"}}
	})
	if got := planCleanup(other, find); got.Status || len(got.Users) != 1 {
		t.Errorf("a user that is no pod: %+v, want it to stay", got)
	}
}

func TestMissing(t *testing.T) {
	p := pod("p", "", v1.PodPending, false)
	if got := missing(p, nil); len(got) != 1 || got[0].Name != "gpu" || got[0].Template != "t" || got[0].Have != nil {
		t.Errorf("missing %+v", got)
	}
	made := claim(madeFor("p"), func(c *resourceapi.ResourceClaim) {
		c.Annotations = map[string]string{resourceapi.PodResourceClaimAnnotation: "gpu"}
	})
	if got := missing(p, []*resourceapi.ResourceClaim{made}); len(got) != 1 || got[0].Have != made {
		t.Errorf("a claim made before a crash is not found again: %+v", got)
	}
	p.Status.ResourceClaimStatuses = []v1.PodResourceClaimStatus{{Name: "gpu"}}
	if got := missing(p, nil); len(got) != 0 {
		t.Errorf("named in the status, yet missing: %+v", got)
	}
	for _, ended := range []*v1.Pod{pod("p", "n", v1.PodFailed, false), pod("p", "n", v1.PodRunning, true)} {
		if got := missing(ended, nil); len(got) != 0 {
			t.Errorf("a pod that ends gets %+v", got)
		}
	}
}

func TestFromTemplate(t *testing.T) {
	p := pod("p", "", v1.PodPending, false)
	template := &resourceapi.ResourceClaimTemplate{Spec: resourceapi.ResourceClaimTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}},
		Spec:       resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "r"}}}}}}
	c := fromTemplate(p, "gpu", template)
	if c.GenerateName != "p-gpu-" || c.Namespace != "ns" || c.Labels["a"] != "b" || c.Annotations["c"] != "d" ||
		c.Annotations[resourceapi.PodResourceClaimAnnotation] != "gpu" || !metav1.IsControlledBy(c, p) ||
		c.Spec.Devices.Requests[0].Name != "r" {
		t.Errorf("made %+v", c)
	}
	if template.Spec.Annotations[resourceapi.PodResourceClaimAnnotation] != "" {
		t.Error("the template was changed")
	}
	p.Name = strings.Repeat("x", 253)
	if n := len(fromTemplate(p, "gpu", template).GenerateName); n+5 > 253 {
		t.Errorf("a name of %d characters", n+5)
	}
}

func TestToReserve(t *testing.T) {
	name := "c"
	for what, c := range map[string]struct {
		pod   *v1.Pod
		claim *resourceapi.ResourceClaim
		want  int
	}{
		"on a node":          {pod("p", "n", v1.PodPending, false), claim(allocated), 1},
		"not on a node":      {pod("p", "", v1.PodPending, false), claim(allocated), 0},
		"named already":      {pod("p", "n", v1.PodPending, false), claim(allocated, usedBy("p")), 0},
		"without devices":    {pod("p", "n", v1.PodPending, false), claim(), 0},
		"being deleted":      {pod("p", "n", v1.PodPending, false), claim(allocated, leaving), 0},
		"ended":              {pod("p", "n", v1.PodSucceeded, false), claim(allocated), 0},
		"claim is not there": {pod("p", "n", v1.PodPending, false), nil, 0},
	} {
		c.pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}}
		got := toReserve(c.pod, func(string) *resourceapi.ResourceClaim { return c.claim })
		if len(got) != c.want {
			t.Errorf("%s: %d to reserve, want %d", what, len(got), c.want)
		}
		if c.want == 1 && reserved(got[0], c.pod)[0].UID != c.pod.UID {
			t.Errorf("%s: reserved for somebody else", what)
		}
	}
}
