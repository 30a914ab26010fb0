package attach

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
)

// cluster is a reconciler whose caches hold the given objects.
func cluster(t *testing.T, objects ...runtime.Object) (*reconciler, *fake.Clientset, *record.FakeRecorder) {
	t.Helper()
	client, events := fake.NewSimpleClientset(objects...), record.NewFakeRecorder(20)
	f := informers.NewSharedInformerFactory(client, 0)
	core, storage := f.Core().V1(), f.Storage().V1()
	c := &reconciler{Env: controller.Env{Client: client, Informers: f, Log: slog.New(slog.DiscardHandler), Journal: journal.Discard},
		queue: controller.NewQueue(), events: events, pods: core.Pods().Informer(), attachments: storage.VolumeAttachments().Informer(),
		idle: map[types.UID]time.Time{}}
	if err := c.index(); err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		var inf cache.SharedIndexInformer
		switch o.(type) {
		case *v1.Pod:
			inf = c.pods
		case *v1.Node:
			inf = core.Nodes().Informer()
		case *v1.PersistentVolume:
			inf = core.PersistentVolumes().Informer()
		case *v1.PersistentVolumeClaim:
			inf = core.PersistentVolumeClaims().Informer()
		case *storagev1.CSIDriver:
			inf = storage.CSIDrivers().Informer()
		default:
			inf = c.attachments
		}
		if err := inf.GetStore().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	return c, client, events
}

func told(events *record.FakeRecorder) (out []string) {
	for {
		select {
		case e := <-events.Events:
			out = append(out, e)
		default:
			return out
		}
	}
}

func managedNode() *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n", Annotations: map[string]string{managed: "true"}},
		Status: v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}}}
}

func user(change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "p"}, Spec: v1.PodSpec{NodeName: "n",
		Volumes: []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}}}
	for _, f := range change {
		f(p)
	}
	return p
}

func boundClaim(name string) *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"},
		Spec: v1.PersistentVolumeClaimSpec{VolumeName: "pv"}, Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound}}
}

func csiVolume(modes ...v1.PersistentVolumeAccessMode) *v1.PersistentVolume {
	return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: v1.PersistentVolumeSpec{AccessModes: modes,
		ClaimRef:               &v1.ObjectReference{Namespace: "ns", Name: "c"},
		PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}}}}
}

// attachment is the volume's on a node, by the name that name makes or by another.
func attachment(node, called string, change ...func(*storagev1.VolumeAttachment)) *storagev1.VolumeAttachment {
	if called == "" {
		called = name(volume{PV: "pv", Driver: "d", Handle: "h"}, node)
	}
	a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: called, UID: types.UID(called)},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: "d", NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("pv")}}}
	for _, f := range change {
		f(a)
	}
	return a
}

func attached(a *storagev1.VolumeAttachment) { a.Status.Attached = true }

// TestSync: which attachments are made and deleted for what is in the API.
func TestSync(t *testing.T) {
	ended := func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded }
	dying := func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{} }
	scratch := func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{Name: "scratch", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}}}
	}
	pending := boundClaim("c")
	pending.Status.Phase = v1.ClaimPending
	hostPath := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	unmanaged := managedNode()
	unmanaged.Annotations = nil
	holder := managedNode()
	holder.Status.VolumesInUse = []v1.UniqueVolumeName{"kubernetes.io/csi/d^h"}
	node, claim, pv := managedNode(), boundClaim("c"), csiVolume(v1.ReadWriteOnce)
	for _, c := range []struct {
		why     string
		objects []runtime.Object
		want    string
		event   string
	}{
		{"a pod needs it", []runtime.Object{node, user(), claim, pv}, "attach", ""},
		{"a pod that is ending still needs it", []runtime.Object{node, user(dying), claim, pv}, "attach", ""},
		{"an ephemeral volume", []runtime.Object{node, user(scratch), boundClaim("p-scratch"), pv}, "attach", ""},
		{"a pod that has ended", []runtime.Object{node, user(ended), claim, pv}, "", ""},
		{"claim is not bound", []runtime.Object{node, user(), pending, pv}, "", ""},
		{"no CSI volume", []runtime.Object{node, user(), claim, hostPath}, "", ""},
		{"a driver that does not attach", []runtime.Object{node, user(), claim, pv, &storagev1.CSIDriver{
			ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)}}}, "", ""},
		{"the node attaches by itself", []runtime.Object{unmanaged, user(), claim, pv}, "", ""},
		{"there already", []runtime.Object{node, user(), claim, pv, attachment("n", "", attached)}, "status", ""},
		{"on another node", []runtime.Object{node, user(), claim, pv, attachment("m", "")}, "", "Warning FailedAttachVolume Multi-Attach"},
		{"on another node, shared", []runtime.Object{node, user(), claim, csiVolume(v1.ReadWriteMany), attachment("m", "")}, "attach", ""},
		{"not needed any more", []runtime.Object{node, pv, attachment("n", "", attached)}, "detach", ""},
		{"not needed, still mounted", []runtime.Object{holder, pv, attachment("n", "", attached)}, "status", ""},
		{"not needed, node is gone", []runtime.Object{pv, attachment("n", "", attached)}, "detach", ""},
		{"made by a person", []runtime.Object{node, pv, attachment("n", "by-hand", attached)}, "", ""},
	} {
		r, client, events := cluster(t, c.objects...)
		if _, err := r.sync(t.Context(), "n"); err != nil {
			t.Errorf("%s: %v", c.why, err)
		}
		var got []string
		for _, a := range client.Actions() {
			switch a := a.(type) {
			case clienttesting.CreateAction:
				made := a.GetObject().(*storagev1.VolumeAttachment)
				if made.Name != attachment("n", "").Name || made.Spec.Attacher != "d" || made.Spec.NodeName != "n" {
					t.Errorf("%s: attachment %+v", c.why, made)
				}
				got = append(got, "attach")
			case clienttesting.DeleteAction:
				got = append(got, "detach")
			case clienttesting.PatchAction:
				got = append(got, a.GetSubresource())
			}
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: %q, want %q", c.why, s, c.want)
		}
		if e := strings.Join(told(events), ";"); (c.event == "") != (e == "") || !strings.HasPrefix(e, c.event) {
			t.Errorf("%s: event %q, want %q", c.why, e, c.event)
		}
	}
}

// TestIdleSince: how long a volume is not needed counts from the first look,
// and begins again when it was needed between.
func TestIdleSince(t *testing.T) {
	c, _, _ := cluster(t, csiVolume(), attachment("n", "", attached))
	start, want := time.Unix(1000, 0), map[string]volume{"pv": {}}
	for i, step := range []struct {
		want map[string]volume
		at   time.Duration
		idle time.Time
	}{
		{nil, 0, start}, {nil, time.Minute, start}, {want, 2 * time.Minute, time.Time{}},
		{nil, 3 * time.Minute, start.Add(3 * time.Minute)},
	} {
		got := c.have("n", step.want, start.Add(step.at))
		if len(got) != 1 || !got[0].IdleSince.Equal(step.idle) {
			t.Errorf("step %d: %+v, want idle since %s", i, got, step.idle)
		}
	}
}

// TestAttachmentEvents: the pods that wait for a volume hear of it, once for each change.
func TestAttachmentEvents(t *testing.T) {
	failed := func(message string) func(*storagev1.VolumeAttachment) {
		return func(a *storagev1.VolumeAttachment) { a.Status.AttachError = &storagev1.VolumeError{Message: message} }
	}
	for _, c := range []struct {
		why      string
		old, now *storagev1.VolumeAttachment
		want     string
	}{
		{"attached", attachment("n", ""), attachment("n", "", attached),
			`Normal SuccessfulAttachVolume AttachVolume.Attach succeeded for volume "pv" `},
		{"attached before", attachment("n", "", attached), attachment("n", "", attached), ""},
		{"failed", attachment("n", ""), attachment("n", "", failed("full")),
			`Warning FailedAttachVolume AttachVolume.Attach failed for volume "pv" : full`},
		{"failed in the same way", attachment("n", "", failed("full")), attachment("n", "", failed("full")), ""},
		{"failed in another way", attachment("n", "", failed("full")), attachment("n", "", failed("slow")),
			`Warning FailedAttachVolume AttachVolume.Attach failed for volume "pv" : slow`},
		{"an old failure of one that is attached", attachment("n", "", attached), attachment("n", "", attached, failed("full")), ""},
		{"on another node", attachment("m", ""), attachment("m", "", attached), ""},
	} {
		r, _, events := cluster(t, managedNode(), user(), boundClaim("c"), csiVolume())
		r.recordAttachment(c.old, c.now)
		if got := strings.Join(told(events), ";"); got != c.want {
			t.Errorf("%s: %q, want %q", c.why, got, c.want)
		}
	}
}

// TestNames: one name per volume and node, as kubelets make it: they look the
// attachment up by it.
func TestNames(t *testing.T) {
	seen := map[string]string{}
	for _, v := range []volume{{Driver: "d", Handle: "h"}, {Driver: "d", Handle: "i"}, {Driver: "e", Handle: "h"}} {
		for _, node := range []string{"n", "m"} {
			n := name(v, node)
			if !ours.MatchString(n) || seen[n] != "" {
				t.Errorf("%+v on %s: %s, as %s", v, node, n, seen[n])
			}
			seen[n] = fmt.Sprintf("%+v on %s", v, node)
		}
	}
	// sha256("h" + "d" + "n"), computed with sha256sum.
	if got, want := name(volume{PV: "another", Driver: "d", Handle: "h"}, "n"),
		"csi-9072ed11cc1acb5fa433a877ff339b6311d013f33bddd1d0092711a8ace5b16d"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
