package provision

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	helper "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/localvolume"
)

// fixture is a provisioner with caches that hold the given objects, and a
// node's driver that gives one answer.
type fixture struct {
	*provisioner
	api    *fake.Clientset
	events *record.FakeRecorder
	calls  []string // calls of the driver: node and name
	answer proto.Message
	refuse codes.Code // instead of the answer
}

func fixtureOf(t *testing.T, objects ...runtime.Object) *fixture {
	t.Helper()
	w := &fixture{api: fake.NewSimpleClientset(objects...), events: record.NewFakeRecorder(20)}
	f := informers.NewSharedInformerFactory(w.api, 0)
	core, storage := f.Core().V1(), f.Storage().V1()
	w.provisioner = &provisioner{Env: controller.Env{Client: w.api, Informers: f, Log: slog.New(slog.DiscardHandler),
		Journal: journal.Discard}, queue: controller.NewQueue(), events: w.events, claims: core.PersistentVolumeClaims().Lister(),
		volumes: core.PersistentVolumes().Lister(), nodes: core.Nodes().Lister(), classes: storage.StorageClasses().Lister(),
		csi: storage.CSINodes().Lister(), drivers: storage.CSIDrivers().Lister(), rooms: storage.CSIStorageCapacities().Lister()}
	w.post = func(_ context.Context, node, url string, _ []byte) (int, []byte, error) {
		w.calls = append(w.calls, node+" "+path.Base(url))
		if w.refuse != codes.OK {
			body, err := json.Marshal(map[string]any{"code": w.refuse, "message": "the driver says " + w.refuse.String()})
			return http.StatusUnprocessableEntity, body, err
		}
		body, err := protojson.Marshal(w.answer)
		return http.StatusOK, body, err
	}
	for _, o := range objects {
		var inf cache.SharedIndexInformer
		switch o.(type) {
		case *v1.PersistentVolumeClaim:
			inf = core.PersistentVolumeClaims().Informer()
		case *v1.PersistentVolume:
			inf = core.PersistentVolumes().Informer()
		case *v1.Node:
			inf = core.Nodes().Informer()
		case *storagev1.StorageClass:
			inf = storage.StorageClasses().Informer()
		case *storagev1.CSINode:
			inf = storage.CSINodes().Informer()
		default:
			inf = storage.CSIStorageCapacities().Informer()
		}
		if err := inf.GetStore().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w *fixture) told() string {
	var out []string
	for {
		select {
		case e := <-w.events.Events:
			kind, rest, _ := strings.Cut(e, " ")
			reason, _, _ := strings.Cut(rest, " ")
			out = append(out, kind+" "+reason)
		default:
			return strings.Join(out, ", ")
		}
	}
}

// chosen is the node that the claim is to be on, "" for none.
func (w *fixture) chosen(t *testing.T) string {
	t.Helper()
	c, err := w.api.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "data", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return c.Annotations[helper.AnnSelectedNode]
}

func node(name string) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "node"}}
}

func classOf(c claimInput) *storagev1.StorageClass { return c.Class }

// TestCreate: what each answer of a node's driver leads to.
func TestCreate(t *testing.T) {
	made := &spec.CreateVolumeResponse{Volume: &spec.Volume{VolumeId: "pvc-u", CapacityBytes: 1 << 30}}
	unbounded := &spec.CreateVolumeResponse{Volume: &spec.Volume{VolumeId: "pvc-u", CapacityBytes: 1 << 30,
		VolumeContext: map[string]string{localvolume.EnforcedContext: "false"}}}
	for _, c := range []struct {
		why    string
		answer *spec.CreateVolumeResponse
		refuse codes.Code
		made   bool
		fails  bool
		chosen string
		told   string
	}{
		{"made", made, 0, true, false, "n1", "Normal ProvisioningSucceeded"},
		{"made, nothing holds it to its size", unbounded, 0, true, false, "n1",
			"Normal ProvisioningSucceeded, Warning CapacityNotEnforced"},
		{"no room: another node", nil, codes.ResourceExhausted, false, false, "", "Warning ProvisioningFailed"},
		{"refused", nil, codes.InvalidArgument, false, true, "n1", "Warning ProvisioningFailed"},
		{"not reached: tried again in silence", nil, codes.Unavailable, false, true, "n1", ""},
	} {
		in := claimFor(nil)
		w := fixtureOf(t, in.PersistentVolumeClaim, classOf(in), node("n1"))
		w.answer, w.refuse = c.answer, c.refuse
		_, err := w.sync(t.Context(), "c/ns/data")
		if (err != nil) != c.fails || w.chosen(t) != c.chosen || strings.Join(w.calls, ",") != "n1 CreateVolume" {
			t.Errorf("%s: %v, on node %q, after %q", c.why, err, w.chosen(t), w.calls)
		}
		if got := w.told(); got != c.told {
			t.Errorf("%s: events %q, want %q", c.why, got, c.told)
		}
		pv, err := w.api.CoreV1().PersistentVolumes().Get(t.Context(), "pvc-u", metav1.GetOptions{})
		if (err == nil) != c.made || c.made && (nodeOf(pv) != "n1" || pv.Spec.CSI.VolumeHandle != "pvc-u") {
			t.Errorf("%s: volume %+v, %v", c.why, pv, err)
		}
		_, again := w.sync(t.Context(), "c/ns/data")
		if got := w.told(); c.refuse != 0 && got != "" {
			t.Errorf("%s: %q is told again (%v)", c.why, got, again)
		}
	}
}

// TestGather: what the decision about a claim is made from.
func TestGather(t *testing.T) {
	in := claimFor(func(c *claimInput) {
		c.Spec.DataSourceRef = &v1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "from"}
	})
	from := claimFor(nil).PersistentVolumeClaim
	from.Name, from.Spec.VolumeName = "from", "pvc-u"
	pv := volumeFor(claimFor(nil), nil)
	for _, c := range []struct {
		why     string
		objects []runtime.Object
		want    string
	}{
		{"nothing is there", nil, "class false volume false source false gone true"},
		{"its node", []runtime.Object{node("n1")}, "class false volume false source false gone false"},
		{"its class", []runtime.Object{classOf(in), node("n1")}, "class true volume false source false gone false"},
		{"the volume made for it", []runtime.Object{pv, node("n1")}, "class false volume true source false gone false"},
		{"what it is to be a copy of", []runtime.Object{from, pv, node("n1")}, "class false volume true source true gone false"},
	} {
		w := fixtureOf(t, c.objects...)
		got, err := w.gatherClaim(in.PersistentVolumeClaim)
		text := fmt.Sprintf("class %v volume %v source %v gone %v", got.Class != nil, got.Volume != nil, got.Source != nil, got.NodeGone)
		if err != nil || text != c.want {
			t.Errorf("%s: %s, %v; want %s", c.why, text, err, c.want)
		}
	}
	w := fixtureOf(t, from, pv)
	elsewhere := in.PersistentVolumeClaim.DeepCopy()
	elsewhere.Spec.DataSourceRef.Namespace = ptr.To("other")
	if got, err := w.gatherClaim(elsewhere); err != nil || got.Source != nil {
		t.Errorf("a claim of another namespace is a source: %+v, %v", got.Source, err)
	}
}

// TestGrow: a volume grows on its node first, then in its object, then in the claim.
func TestGrow(t *testing.T) {
	for _, c := range []struct {
		why    string
		refuse codes.Code
		size   string // of volume and claim afterwards
		told   string
	}{
		{"grown", 0, "2Gi", "Normal VolumeResizeSuccessful"},
		{"no room", codes.ResourceExhausted, "1Gi", "Warning VolumeResizeFailed"},
		{"not reached", codes.Unavailable, "1Gi", ""},
	} {
		in := claimFor(nil)
		pv := volumeFor(in, nil)
		claim := in.PersistentVolumeClaim
		claim.Spec.VolumeName, claim.Status.Phase = pv.Name, v1.ClaimBound
		claim.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse("2Gi")
		claim.Status.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
		claim.Status.Conditions = []v1.PersistentVolumeClaimCondition{{Type: v1.PersistentVolumeClaimResizing}, {Type: "Mine"}}
		w := fixtureOf(t, claim, pv, classOf(in), node("n1"))
		w.answer, w.refuse = &spec.ControllerExpandVolumeResponse{CapacityBytes: 2 << 30}, c.refuse
		_, err := w.sync(t.Context(), "c/ns/data")
		if (err != nil) != (c.refuse != 0) || w.told() != c.told {
			t.Errorf("%s: %v", c.why, err)
		}
		got, err1 := w.api.CoreV1().PersistentVolumes().Get(t.Context(), pv.Name, metav1.GetOptions{})
		told, err2 := w.api.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "data", metav1.GetOptions{})
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		has, says := got.Spec.Capacity[v1.ResourceStorage], told.Status.Capacity[v1.ResourceStorage]
		if has.String() != c.size || says.String() != c.size {
			t.Errorf("%s: the volume has %s and the claim says %s, want %s", c.why, has.String(), says.String(), c.size)
		}
		if want := map[bool]int{true: 1, false: 2}[c.refuse == 0]; len(told.Status.Conditions) != want {
			t.Errorf("%s: conditions %v", c.why, told.Status.Conditions)
		}
	}
}

// TestRemove: data is deleted only if the API server itself says that its
// volume is released.
func TestRemove(t *testing.T) {
	released := func(pv *v1.PersistentVolume) { pv.Status.Phase = v1.VolumeReleased }
	for _, c := range []struct {
		why    string
		live   func(*v1.PersistentVolume) // what the cache does not show yet
		refuse codes.Code
		calls  string
		left   bool
		told   string
	}{
		{"released", nil, 0, "n1 DeleteVolume", false, ""},
		{"bound again", func(pv *v1.PersistentVolume) { pv.Status.Phase = v1.VolumeBound }, 0, "", true, ""},
		{"to be retained", func(pv *v1.PersistentVolume) {
			pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRetain
		}, 0, "", true, ""},
		{"another of its name", func(pv *v1.PersistentVolume) { pv.UID = "new" }, 0, "", true, ""},
		{"in use, says the driver", nil, codes.FailedPrecondition, "n1 DeleteVolume", true, "Warning VolumeFailedDelete"},
		{"not reached", nil, codes.Unavailable, "n1 DeleteVolume", true, ""},
	} {
		pv := volumeFor(claimFor(nil), released)
		w := fixtureOf(t, pv, node("n1"))
		w.answer, w.refuse = &spec.DeleteVolumeResponse{}, c.refuse
		if c.live != nil {
			live := pv.DeepCopy()
			c.live(live)
			if err := w.api.Tracker().Update(v1.SchemeGroupVersion.WithResource("persistentvolumes"), live, ""); err != nil {
				t.Fatal(err)
			}
		}
		_, err := w.sync(t.Context(), "v/"+pv.Name)
		if (err != nil) != (c.refuse != 0) || strings.Join(w.calls, ",") != c.calls || w.told() != c.told {
			t.Errorf("%s: %v after %q", c.why, err, w.calls)
		}
		_, err = w.api.CoreV1().PersistentVolumes().Get(t.Context(), pv.Name, metav1.GetOptions{})
		if (err == nil) != c.left || err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("%s: the object: %v", c.why, err)
		}
	}
}

// TestCapacities: what the scheduler is told of a node, and which node a class
// that binds at once takes.
func TestCapacities(t *testing.T) {
	in := claimFor(nil)
	serving := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: localvolume.Name}}}}
	old := &storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{Name: capacityName("gone", "n1"), Namespace: "kube-system",
		Labels: map[string]string{localvolume.TopologyKey: "n1"}}, StorageClassName: "gone"}
	w := fixtureOf(t, node("n1"), classOf(in), serving, old)
	w.answer = &spec.GetCapacityResponse{AvailableCapacity: 5 << 30}
	if again, err := w.sync(t.Context(), "n/n1"); err != nil || again != capacityEvery {
		t.Fatalf("again in %s, %v", again, err)
	}
	list, err := w.api.StorageV1().CSIStorageCapacities("").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%+v, %v: want one object, and that of a deleted class gone", list, err)
	}
	got := list.Items[0]
	if got.Name != capacityName(DirectoryClass, "n1") || got.Capacity.String() != "5Gi" || got.OwnerReferences[0].Name != "n1" ||
		got.NodeTopology.MatchLabels[localvolume.TopologyKey] != "n1" || got.MaximumVolumeSize.String() != "5Gi" {
		t.Errorf("capacity %+v", got)
	}
	silent := fixtureOf(t, node("n1"), classOf(in))
	if again, err := silent.sync(t.Context(), "n/n1"); err != nil || again != 0 || len(silent.calls) > 0 {
		t.Errorf("a node without the driver is asked %q: %v", silent.calls, err)
	}
	room := func(node, class, size string) runtime.Object {
		return &storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{Name: node + class, Namespace: "kube-system",
			Labels: map[string]string{localvolume.TopologyKey: node}}, StorageClassName: class, Capacity: ptr.To(resource.MustParse(size))}
	}
	many := fixtureOf(t, room("b", "x", "5Gi"), room("a", "x", "5Gi"), room("c", "x", "1Gi"), room("d", "y", "9Gi"))
	for class, want := range map[string]string{"x": "a", "y": "d", "z": ""} {
		if got := many.roomiest(class); got != want {
			t.Errorf("class %s: node %q, want %q", class, got, want)
		}
	}
}

// TestSetUp: a new cluster gets the driver's object and the classes; one that
// had them keeps what its users did to them.
func TestSetUp(t *testing.T) {
	w := fixtureOf(t)
	if _, err := w.sync(t.Context(), "setup"); err != nil {
		t.Fatal(err)
	}
	list, err := w.api.StorageV1().StorageClasses().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	if _, err := w.api.StorageV1().CSIDrivers().Get(t.Context(), localvolume.Name, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if err := w.api.StorageV1().StorageClasses().Delete(t.Context(), ImageClass, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.sync(t.Context(), "setup"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.api.StorageV1().StorageClasses().Get(t.Context(), ImageClass, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a class that a user deleted is made again: %v", err)
	}
}
