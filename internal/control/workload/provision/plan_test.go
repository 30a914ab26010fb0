package provision

import (
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	helper "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/localvolume"
)

func claimFor(change func(*claimInput)) claimInput {
	c := claimInput{PersistentVolumeClaim: &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "u", Annotations: map[string]string{
			provisionerAnnotation: localvolume.Name, helper.AnnSelectedNode: "n1"}},
		Spec: v1.PersistentVolumeClaimSpec{AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			StorageClassName: ptr.To(DirectoryClass),
			Resources:        v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}}},
	}, Class: classes(false)[0]}
	if change != nil {
		change(&c)
	}
	return c
}

func volumeFor(c claimInput, change func(*v1.PersistentVolume)) *v1.PersistentVolume {
	pv := volume(c, plan{Node: "n1"}, &spec.Volume{VolumeId: "pvc-u", CapacityBytes: 1 << 30})
	if change != nil {
		change(pv)
	}
	return pv
}

func TestForClaim(t *testing.T) {
	boundTo := func(told string, want string) func(*claimInput) {
		return func(c *claimInput) {
			c.Volume = volumeFor(*c, nil)
			c.Spec.VolumeName, c.Status.Phase = c.Volume.Name, v1.ClaimBound
			c.Status.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse(told)}
			c.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse(want)
		}
	}
	for name, tt := range map[string]struct {
		change func(*claimInput)
		do     action
		node   string
		says   string
	}{
		"chosen node": {nil, Create, "n1", ""},
		"beta annotation": {func(c *claimInput) {
			c.Annotations = map[string]string{betaProvisionerAnnotation: localvolume.Name, helper.AnnSelectedNode: "n1"}
		}, Create, "n1", ""},
		"another's":          {func(c *claimInput) { c.Annotations[provisionerAnnotation] = "csi.example.com" }, Nothing, "", ""},
		"class is gone":      {func(c *claimInput) { c.Class = nil }, Nothing, "", ""},
		"class is another's": {func(c *claimInput) { c.Class.Provisioner = "csi.example.com" }, Nothing, "", ""},
		"being deleted":      {func(c *claimInput) { c.DeletionTimestamp = &metav1.Time{} }, Nothing, "", ""},
		"made already":       {func(c *claimInput) { c.Volume = volumeFor(*c, nil) }, Nothing, "", ""},
		"not scheduled yet":  {func(c *claimInput) { delete(c.Annotations, helper.AnnSelectedNode) }, Nothing, "", ""},
		"node is gone":       {func(c *claimInput) { c.NodeGone = true }, Reschedule, "n1", "n1 does not exist"},
		"many nodes": {func(c *claimInput) { c.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany} },
			Nothing, "", "spec.accessModes: ReadWriteMany"},
		"one pod": {func(c *claimInput) { c.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod} },
			Create, "n1", ""},
		"selector":                 {func(c *claimInput) { c.Spec.Selector = &metav1.LabelSelector{} }, Nothing, "", "spec.selector"},
		"filesystem":               {func(c *claimInput) { c.Class.Parameters[fsTypeParameter] = "ntfs" }, Nothing, "", `"ntfs"`},
		"at once, roomiest node":   {func(c *claimInput) { immediate(c); c.Roomiest = "n3" }, Create, "n3", ""},
		"at once, nobody has room": {immediate, Nothing, "", "no node has local volumes"},
		"copy of a claim":          {copyOf("n1"), Create, "n1", ""},
		"copy from another node":   {copyOf("n2"), Reschedule, "n1", "is on node n2"},
		"copy of an unbound claim": {func(c *claimInput) { copyOf("n1")(c); c.Source = nil }, Nothing, "", "not bound to a local volume"},
		"copy of a snapshot": {func(c *claimInput) {
			c.Spec.DataSourceRef = &v1.TypedObjectReference{Kind: "VolumeSnapshot", APIGroup: ptr.To("snapshot.storage.k8s.io")}
		}, Nothing, "", "not of a VolumeSnapshot"},
		"bound": {boundTo("1Gi", "1Gi"), Nothing, "", ""},
		"bound to another's volume": {func(c *claimInput) { boundTo("1Gi", "2Gi")(c); c.Volume.Spec.CSI.Driver = "csi.example.com" },
			Nothing, "", ""},
		"wants more":      {boundTo("1Gi", "2Gi"), Expand, "n1", ""},
		"wants less":      {boundTo("1Gi", "512Mi"), Nothing, "", ""},
		"grown, not told": {boundTo("512Mi", "1Gi"), Report, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := forClaim(claimFor(tt.change))
			if got.Do != tt.do || got.Node != tt.node {
				t.Errorf("%+v, want %q on %q", got, tt.do, tt.node)
			}
			if (got.Reason != "") != (tt.says != "") || !strings.Contains(got.Message, tt.says) {
				t.Errorf("says %q %q, want %q", got.Reason, got.Message, tt.says)
			}
		})
	}
}

func immediate(c *claimInput) {
	c.Class.VolumeBindingMode = ptr.To(storagev1.VolumeBindingImmediate)
	delete(c.Annotations, helper.AnnSelectedNode)
}

func copyOf(node string) func(*claimInput) {
	return func(c *claimInput) {
		c.Spec.DataSource = &v1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "from"}
		c.Spec.DataSourceRef = &v1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "from"}
		c.Source = volume(claimFor(nil), plan{Node: node}, &spec.Volume{VolumeId: "pvc-from"})
	}
}

func TestForVolume(t *testing.T) {
	released := func(pv *v1.PersistentVolume) { pv.Status.Phase = v1.VolumeReleased }
	retain := func(pv *v1.PersistentVolume) {
		pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRetain
	}
	for name, tt := range map[string]struct {
		change func(*v1.PersistentVolume)
		gone   bool
		do     action
		reason string
	}{
		"bound":               {func(pv *v1.PersistentVolume) { pv.Status.Phase = v1.VolumeBound }, false, Nothing, ""},
		"released":            {released, false, Delete, ""},
		"released, node gone": {released, true, Nothing, "VolumeNodeGone"},
		"released, kept": {func(pv *v1.PersistentVolume) { released(pv); retain(pv); pv.Finalizers = nil }, false, Nothing,
			""},
		"to be kept from now on": {func(pv *v1.PersistentVolume) { released(pv); retain(pv) }, false, LetGo, ""},
		"to be deleted from now on": {func(pv *v1.PersistentVolume) { pv.Status.Phase, pv.Finalizers = v1.VolumeBound, nil }, false,
			Hold, ""},
		"deleted while bound": {func(pv *v1.PersistentVolume) {
			pv.Status.Phase, pv.DeletionTimestamp = v1.VolumeBound,
				&metav1.Time{}
		}, false, Nothing, ""},
		"another driver's": {func(pv *v1.PersistentVolume) { released(pv); pv.Spec.CSI.Driver = "csi.example.com" }, false,
			Nothing, ""},
		"made by hand, nobody's to take": {func(pv *v1.PersistentVolume) { released(pv); pv.Annotations = nil }, false, Nothing, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := forVolume(volumeFor(claimFor(nil), tt.change), tt.gone)
			if got.Do != tt.do || got.Reason != tt.reason {
				t.Errorf("%+v, want %q %q", got, tt.do, tt.reason)
			}
		})
	}
}

// TestObjects: what is written to the API is what a claim asked for.
func TestObjects(t *testing.T) {
	c := claimFor(func(c *claimInput) {
		c.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
		c.Class.MountOptions, c.Class.Parameters[fsTypeParameter] = []string{"noatime"}, "ext4"
	})
	req := request(c, plan{Node: "n1", Bytes: 5})
	if len(req.Parameters) != 1 || req.Parameters[localvolume.TypeParameter] != string(localvolume.Directory) {
		t.Errorf("parameters %v", req.Parameters)
	}
	if got := req.VolumeCapabilities[0]; got.GetAccessMode().GetMode() != spec.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER ||
		got.GetMount().GetFsType() != "ext4" || got.GetMount().GetMountFlags()[0] != "noatime" {
		t.Errorf("capability %v", got)
	}
	pv := volumeFor(c, nil)
	if nodeOf(pv) != "n1" || pv.Spec.ClaimRef.UID != "u" || pv.Name != "pvc-u" || pv.Spec.StorageClassName != DirectoryClass ||
		len(pv.Finalizers) != 1 {
		t.Errorf("volume %+v", pv)
	}
	c.Class.ReclaimPolicy = ptr.To(v1.PersistentVolumeReclaimRetain)
	if pv := volumeFor(c, nil); len(pv.Finalizers) != 0 {
		t.Errorf("a volume to be kept has finalizers %v", pv.Finalizers)
	}
	if all := classes(true); all[0].Annotations[defaultAnnotation] != "" || classes(false)[0].Annotations[defaultAnnotation] != "true" {
		t.Error("the class is the default beside another")
	}
}

func TestDiffers(t *testing.T) {
	const gib = 1 << 30
	for _, tt := range []struct {
		told, now int64
		want      bool
	}{{gib, gib, false}, {gib, gib - 1, false}, {gib, gib - 70<<20, true}, {gib, 0, true}, {0, 1, true}, {20 << 20, 19 << 20, true},
		{gib, gib / 2, true}} {
		if got := differs(tt.told, tt.now); got != tt.want {
			t.Errorf("%d, then %d: %v", tt.told, tt.now, got)
		}
	}
}
