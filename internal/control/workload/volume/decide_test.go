package volume

import (
	"log/slog"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	helper "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
)

// TestNamedVolumes: why a claim does not get the volume it asks for by name.
func TestNamedVolumes(t *testing.T) {
	for _, c := range []struct {
		why    string
		change func(*v1.PersistentVolumeClaim, *v1.PersistentVolume)
		want   string // part of the event's message, "" if it is bound
	}{
		{"fits", func(*v1.PersistentVolumeClaim, *v1.PersistentVolume) {}, ""},
		{"too small", func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) { *pv = *volume("v", "1Gi", nil) }, "is too small"},
		{"another class", func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) { pv.Spec.StorageClassName = "x" },
			"storageClassName does not match"},
		{"a block device", func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
			pv.Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock)
		}, "incompatible volumeMode"},
		{"another access mode", func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) {
			c.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
		}, "incompatible accessMode"},
		{"reserved for it", func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) { pv.Spec.ClaimRef = ref("c", "") }, ""},
		{"reserved for an older claim of its name", func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
			pv.Spec.ClaimRef = ref("c", "before")
		}, "already bound to a different claim"},
	} {
		cl, pv := claim(), volume("v", "3Gi", nil)
		cl.Spec.VolumeName = "v"
		c.change(cl, pv)
		p := forClaim(cl, []*v1.PersistentVolume{volume("other", "9Gi", nil), pv}, nil)
		switch {
		case c.want == "" && (p.Bind != pv || p.Event != nil):
			t.Errorf("%s: %+v", c.why, p)
		case c.want != "" && (p.Bind != nil || p.Event == nil || !strings.Contains(p.Event.Message, c.want) || p.Phase != v1.ClaimPending):
			t.Errorf("%s: %+v, want %q", c.why, p, c.want)
		}
	}
	waiting := claim()
	waiting.Spec.VolumeName = "later"
	if p := forClaim(waiting, nil, nil); p.Phase != v1.ClaimPending || p.Event != nil || p.Bind != nil {
		t.Errorf("a volume that does not exist yet: %+v", p)
	}
}

// TestLostIsToldOnce: a claim that is lost stays lost, and says so once.
func TestLostIsToldOnce(t *testing.T) {
	c := claim()
	c.Annotations = map[string]string{helper.AnnBindCompleted: yes}
	for why, name := range map[string]string{"names no volume": "", "its volume is gone": "v"} {
		c.Spec.VolumeName, c.Status.Phase = name, v1.ClaimBound
		if p := forClaim(c, nil, nil); p.Phase != v1.ClaimLost || p.Event == nil || p.Event.Reason != "ClaimLost" {
			t.Errorf("%s: %+v", why, p)
		}
		c.Status.Phase = v1.ClaimLost
		if p := forClaim(c, nil, nil); p.Phase != v1.ClaimLost || p.Event != nil {
			t.Errorf("%s, again: %+v", why, p)
		}
	}
}

// TestReleasedVolumes: what becomes of a volume whose claim is gone or took another one.
func TestReleasedVolumes(t *testing.T) {
	const provisionedBy = "pv.kubernetes.io/provisioned-by"
	elsewhere := claim()
	elsewhere.Spec.VolumeName = "w"
	pending := claim()
	deleted, recycled := v1.PersistentVolumeReclaimDelete, v1.PersistentVolumeReclaimRecycle
	provisioned := func(pv *v1.PersistentVolume) {
		pv.Spec.PersistentVolumeReclaimPolicy, pv.Annotations = deleted, map[string]string{provisionedBy: "example.com"}
	}
	for _, c := range []struct {
		why    string
		claim  *v1.PersistentVolumeClaim
		change func(*v1.PersistentVolume)
		phase  v1.PersistentVolumePhase
		unbind bool
		event  string
	}{
		{"retained", nil, func(*v1.PersistentVolume) {}, v1.VolumeReleased, false, ""},
		{"its provisioner deletes it", nil, provisioned, v1.VolumeReleased, false, ""},
		{"its driver deletes it", nil, func(pv *v1.PersistentVolume) {
			pv.Spec.PersistentVolumeReclaimPolicy, pv.Spec.CSI = deleted, &v1.CSIPersistentVolumeSource{}
		}, v1.VolumeReleased, false, ""},
		{"nobody can delete it", nil, func(pv *v1.PersistentVolume) { pv.Spec.PersistentVolumeReclaimPolicy = deleted }, v1.VolumeFailed,
			false, "VolumeFailedDelete"},
		{"recycling is gone", nil, func(pv *v1.PersistentVolume) { pv.Spec.PersistentVolumeReclaimPolicy = recycled }, v1.VolumeFailed,
			false, "VolumeFailedRecycle"},
		{"failed already", nil, func(pv *v1.PersistentVolume) {
			pv.Spec.PersistentVolumeReclaimPolicy, pv.Status.Phase = deleted, v1.VolumeFailed
		}, v1.VolumeFailed, false, ""},
		{"its claim is not bound yet", pending, func(pv *v1.PersistentVolume) { pv.Status.Phase = v1.VolumePending }, v1.VolumePending,
			false, ""},
		{"its claim took another, made by hand", elsewhere, func(*v1.PersistentVolume) {}, v1.VolumeAvailable, true, ""},
		{"its claim took another, bound by us", elsewhere, func(pv *v1.PersistentVolume) {
			pv.Annotations = map[string]string{helper.AnnBoundByController: yes}
		}, v1.VolumeAvailable, true, ""},
		{"its claim took another, made for it", elsewhere, provisioned, v1.VolumeReleased, false, ""},
		{"its claim took another, made for it and failed", elsewhere, func(pv *v1.PersistentVolume) {
			provisioned(pv)
			pv.Status.Phase = v1.VolumeFailed
		}, v1.VolumeFailed, false, ""},
		{"its claim took another, made for it and kept", elsewhere, func(pv *v1.PersistentVolume) {
			provisioned(pv)
			pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRetain
		}, v1.VolumeAvailable, true, ""},
	} {
		pv := volume("v", "3Gi", ref("c", "c"))
		c.change(pv)
		p := forVolume(pv, c.claim)
		event := ""
		if p.Event != nil {
			event = p.Event.Reason
		}
		if p.Phase != c.phase || p.Unbind != c.unbind || event != c.event {
			t.Errorf("%s: %s, unbind %v, event %q; want %s, %v, %q", c.why, p.Phase, p.Unbind, event, c.phase, c.unbind, c.event)
		}
	}
}

// TestProtection: a finalizer is added to what lives and taken off what ends
// and is not used; others' finalizers stay.
func TestProtection(t *testing.T) {
	for _, c := range []struct {
		why          string
		have         []string
		ending, used bool
		want         string
	}{
		{"new", []string{"x"}, false, false, "x f"},
		{"guarded already", []string{"f"}, false, true, "no change"},
		{"ends and is used", []string{"f"}, true, true, "no change"},
		{"ends and is free", []string{"f", "x"}, true, false, "x"},
		{"ends with nothing else", []string{"f"}, true, false, ""},
		{"ends and was never guarded", []string{"x"}, true, false, "no change"},
	} {
		o := &metav1.ObjectMeta{Finalizers: c.have}
		if c.ending {
			o.DeletionTimestamp = &metav1.Time{}
		}
		before, got := slices.Clone(c.have), "no change"
		if change := protect(o, "f", c.used); change != nil {
			got = strings.Join(*change.Finalizers, " ")
		}
		if got != c.want || !slices.Equal(o.Finalizers, before) {
			t.Errorf("%s: %q, want %q; the object now has %q", c.why, got, c.want, o.Finalizers)
		}
	}
}

func podWith(node string, phase v1.PodPhase, volumes ...v1.Volume) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "p"},
		Spec: v1.PodSpec{NodeName: node, Volumes: volumes}, Status: v1.PodStatus{Phase: phase}}
}

// TestUsers: which pods keep a claim from going.
func TestUsers(t *testing.T) {
	byName := v1.Volume{Name: "data",
		VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}
	own := v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}}
	for _, c := range []struct {
		why   string
		pod   *v1.Pod
		claim string
		want  bool
	}{
		{"on a node", podWith("n", v1.PodRunning, byName), "c", true},
		{"not on a node yet", podWith("", v1.PodPending, byName), "c", false},
		{"ended", podWith("n", v1.PodSucceeded, byName), "c", false},
		{"another claim", podWith("n", v1.PodRunning, byName), "d", false},
		{"its own ephemeral one", podWith("n", v1.PodRunning, own), "p-scratch", true},
		{"an ephemeral one's bare name", podWith("n", v1.PodRunning, own), "scratch", false},
	} {
		if got := uses(c.pod, c.claim); got != c.want {
			t.Errorf("%s: %v", c.why, got)
		}
	}
}

// TestEphemeralClaims: the claims of a pod's own volumes, which go with the pod.
func TestEphemeralClaims(t *testing.T) {
	template := &v1.PersistentVolumeClaimTemplate{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "1"}},
		Spec: claim().Spec}
	own := v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{VolumeClaimTemplate: template}}}
	pod := podWith("", v1.PodPending, own, v1.Volume{Name: "tmp"})
	got := ephemeralClaims(pod)
	if len(got) != 1 || got[0].Name != "p-scratch" || got[0].Namespace != "ns" || got[0].Labels["a"] != "1" ||
		!metav1.IsControlledBy(got[0], pod) || !*got[0].OwnerReferences[0].BlockOwnerDeletion {
		t.Fatalf("claims %+v", got)
	}
	if got[0].Spec.AccessModes[0] = v1.ReadWriteMany; template.Spec.AccessModes[0] == v1.ReadWriteMany {
		t.Error("the claim shares memory with the pod's template")
	}
	for why, p := range map[string]*v1.Pod{"ended": podWith("n", v1.PodFailed, own), "being deleted": func() *v1.Pod {
		p := podWith("n", v1.PodRunning, own)
		p.DeletionTimestamp = &metav1.Time{}
		return p
	}()} {
		if got := ephemeralClaims(p); len(got) != 0 {
			t.Errorf("a pod that is %s gets %d claims", why, len(got))
		}
	}
}

// TestAttributesClasses: the classes that a claim keeps from going: what it
// asks for, has, and is being given.
func TestAttributesClasses(t *testing.T) {
	c := &v1.PersistentVolumeClaim{}
	if got := classesOfClaim(c); got != nil {
		t.Errorf("none: %q", got)
	}
	c.Spec.VolumeAttributesClassName, c.Status.CurrentVolumeAttributesClassName = ptr.To("asks"), ptr.To("has")
	c.Status.ModifyVolumeStatus = &v1.ModifyVolumeStatus{TargetVolumeAttributesClassName: "gets"}
	if got := classesOfClaim(c); !slices.Equal(got, []string{"asks", "has", "gets"}) {
		t.Errorf("all: %q", got)
	}
	c.Spec.VolumeAttributesClassName, c.Status.ModifyVolumeStatus = ptr.To(""), &v1.ModifyVolumeStatus{}
	if got := classesOfClaim(c); !slices.Equal(got, []string{"has"}) {
		t.Errorf("empty names count: %q", got)
	}
	pv := volume("v", "1Gi", nil)
	if got := classesOfVolume(pv); got != nil {
		t.Errorf("volume without: %q", got)
	}
	if pv.Spec.VolumeAttributesClassName = ptr.To("has"); !slices.Equal(classesOfVolume(pv), []string{"has"}) {
		t.Errorf("volume: %q", classesOfVolume(pv))
	}
}

// binderOf is a binder whose caches hold what the API holds.
func binderOf(t *testing.T, objects ...runtime.Object) (*binder, *fake.Clientset) {
	t.Helper()
	client := fake.NewSimpleClientset(objects...)
	f := informers.NewSharedInformerFactory(client, 0)
	core := f.Core().V1()
	b := &binder{Env: controller.Env{Client: client, Informers: f, Log: slog.New(slog.DiscardHandler), Journal: journal.Discard},
		queue:  controller.NewQueue(),
		events: record.NewFakeRecorder(10), claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister(),
		classes: f.Storage().V1().StorageClasses().Lister()}
	for _, o := range objects {
		store := core.PersistentVolumes().Informer().GetStore()
		if _, ok := o.(*v1.PersistentVolumeClaim); ok {
			store = core.PersistentVolumeClaims().Informer().GetStore()
		}
		if err := store.Add(o); err != nil {
			t.Fatal(err)
		}
	}
	return b, client
}

func written(client *fake.Clientset) string {
	var out []string
	for _, a := range client.Actions() {
		if p, ok := a.(clienttesting.PatchAction); ok {
			what := p.GetResource().Resource
			if p.GetSubresource() != "" {
				what += "/" + p.GetSubresource()
			}
			out = append(out, what)
		}
	}
	return strings.Join(out, " ")
}

// TestBindingOrder: the volume is written before the claim, so that a crash
// between leaves a reservation and no claim without a volume; and whatever was
// written already is not written again.
func TestBindingOrder(t *testing.T) {
	const all = "persistentvolumes persistentvolumes/status persistentvolumeclaims persistentvolumeclaims/status"
	steps := []struct {
		why    string
		change func(*v1.PersistentVolumeClaim, *v1.PersistentVolume)
		want   string
	}{
		{"from the beginning", func(*v1.PersistentVolumeClaim, *v1.PersistentVolume) {}, all},
		{"volume refers to the claim", func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) { pv.Spec.ClaimRef = ref("c", "c") },
			"persistentvolumes/status persistentvolumeclaims persistentvolumeclaims/status"},
		{"volume is bound", func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) { pv.Status.Phase = v1.VolumeBound },
			"persistentvolumeclaims persistentvolumeclaims/status"},
		{"claim refers to the volume", func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) {
			c.Spec.VolumeName, c.Annotations = "v", map[string]string{helper.AnnBindCompleted: yes}
		}, "persistentvolumeclaims/status"},
		{"claim is bound", func(c *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
			c.Status.Phase, c.Status.Capacity = v1.ClaimBound, pv.Spec.Capacity
		}, ""},
	}
	c, pv := claim(), volume("v", "3Gi", nil)
	for _, step := range steps {
		step.change(c, pv)
		b, client := binderOf(t, c.DeepCopy(), pv.DeepCopy())
		if _, err := b.sync(t.Context(), "c/ns/c"); err != nil {
			t.Fatalf("%s: %v", step.why, err)
		}
		if got := written(client); got != step.want {
			t.Errorf("%s: writes %q, want %q", step.why, got, step.want)
		}
		got, err := client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "c", metav1.GetOptions{})
		if err != nil || got.Spec.VolumeName != "v" || got.Status.Phase != v1.ClaimBound {
			t.Errorf("%s: claim %+v, %v", step.why, got, err)
		}
		held, err := client.CoreV1().PersistentVolumes().Get(t.Context(), "v", metav1.GetOptions{})
		if err != nil || held.Spec.ClaimRef.UID != "c" || held.Status.Phase != v1.VolumeBound {
			t.Errorf("%s: volume %+v, %v", step.why, held, err)
		}
	}
}

// TestReleaseAsksTheAPI: a cache that lacks a claim does not release its
// volume, for that loses data.
func TestReleaseAsksTheAPI(t *testing.T) {
	c, pv := claim(), volume("v", "3Gi", ref("c", "c"))
	c.Spec.VolumeName, pv.Status.Phase = "v", v1.VolumeBound
	b, client := binderOf(t, pv)
	if err := client.Tracker().Add(c); err != nil {
		t.Fatal(err)
	}
	if _, err := b.sync(t.Context(), "v/v"); err != nil || written(client) != "" {
		t.Errorf("the claim exists, and the volume is written: %q, %v", written(client), err)
	}
	if err := client.Tracker().Delete(v1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), "ns", "c"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.sync(t.Context(), "v/v"); err != nil || written(client) != "persistentvolumes/status" {
		t.Errorf("the claim is gone: %q, %v", written(client), err)
	}
}
