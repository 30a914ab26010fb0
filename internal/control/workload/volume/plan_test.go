package volume

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	helper "k8s.io/component-helpers/storage/volume"
)

func claim(mods ...func(*v1.PersistentVolumeClaim)) *v1.PersistentVolumeClaim {
	class, mode := "", v1.PersistentVolumeFilesystem
	c := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "ns", UID: "c"},
		Spec: v1.PersistentVolumeClaimSpec{StorageClassName: &class, VolumeMode: &mode,
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources:   v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("2Gi")}}}}
	for _, m := range mods {
		m(c)
	}
	return c
}

func volume(name, size string, ref *v1.ObjectReference) *v1.PersistentVolume {
	mode := v1.PersistentVolumeFilesystem
	return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)},
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, VolumeMode: &mode, ClaimRef: ref,
			PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimRetain},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable}}
}

func ref(name string, uid types.UID) *v1.ObjectReference {
	return &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "ns", Name: name, UID: uid}
}

func TestClaims(t *testing.T) {
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	local := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: helper.NotSupportedProvisioner,
		VolumeBindingMode: &wait}
	cloud := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "cloud"}, Provisioner: "example.com/disk"}
	classed := func(n string) func(*v1.PersistentVolumeClaim) {
		return func(c *v1.PersistentVolumeClaim) { c.Spec.StorageClassName = &n }
	}
	named := func(n string) func(*v1.PersistentVolumeClaim) {
		return func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = n }
	}
	bound := func(c *v1.PersistentVolumeClaim) { c.Annotations = map[string]string{helper.AnnBindCompleted: yes} }
	for name, c := range map[string]struct {
		claim   *v1.PersistentVolumeClaim
		volumes []*v1.PersistentVolume
		class   *storagev1.StorageClass
		want    string // "phase volume provisioner event"
	}{
		"smallest that fits": {claim(), []*v1.PersistentVolume{volume("big", "9Gi", nil), volume("small", "1Gi", nil),
			volume("fits", "3Gi", nil)}, nil, "Bound fits  "},
		"none": {claim(), nil, nil, "Pending   FailedBinding"},
		"reserved for it": {claim(), []*v1.PersistentVolume{volume("fits", "3Gi", nil), volume("mine", "9Gi", ref("c", ""))}, nil,
			"Bound mine  "},
		"waits for a pod":    {claim(classed("local")), nil, local, "Pending   WaitForFirstConsumer"},
		"provisioned":        {claim(classed("cloud")), nil, cloud, "Pending  example.com/disk ExternalProvisioning"},
		"class missing":      {claim(classed("nope")), nil, nil, "Pending   ProvisioningFailed"},
		"by name":            {claim(named("v")), []*v1.PersistentVolume{volume("v", "3Gi", nil)}, nil, "Bound v  "},
		"by name, too small": {claim(named("v")), []*v1.PersistentVolume{volume("v", "1Gi", nil)}, nil, "Pending   VolumeMismatch"},
		"by name, taken": {claim(named("v")), []*v1.PersistentVolume{volume("v", "3Gi", ref("other", "o"))}, nil,
			"Pending   FailedBinding"},
		"bound":              {claim(named("v"), bound), []*v1.PersistentVolume{volume("v", "3Gi", ref("c", "c"))}, nil, "Bound v  "},
		"bound, volume gone": {claim(named("v"), bound), nil, nil, "Lost   ClaimLost"},
		"bound, volume another": {claim(named("v"), bound), []*v1.PersistentVolume{volume("v", "3Gi", ref("c", "before"))}, nil,
			"Lost   ClaimMisbound"},
	} {
		p := forClaim(c.claim, c.volumes, c.class)
		got := string(p.Phase) + " "
		if p.Bind != nil {
			got += p.Bind.Name
		}
		got += " " + p.Provisioner + " "
		if p.Event != nil {
			got += p.Event.Reason
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestVolumes(t *testing.T) {
	holding := func(n string) *v1.PersistentVolumeClaim {
		c := claim()
		c.Spec.VolumeName = n
		return c
	}
	deleting := volume("v", "3Gi", ref("c", "c"))
	deleting.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimDelete
	for name, c := range map[string]struct {
		pv     *v1.PersistentVolume
		claim  *v1.PersistentVolumeClaim
		phase  v1.PersistentVolumePhase
		unbind bool
	}{
		"free":                   {volume("v", "3Gi", nil), nil, v1.VolumeAvailable, false},
		"reserved":               {volume("v", "3Gi", ref("c", "")), nil, v1.VolumeAvailable, false},
		"bound":                  {volume("v", "3Gi", ref("c", "c")), holding("v"), v1.VolumeBound, false},
		"claim gone":             {volume("v", "3Gi", ref("c", "c")), nil, v1.VolumeReleased, false},
		"claim is another":       {volume("v", "3Gi", ref("c", "before")), holding("v"), v1.VolumeReleased, false},
		"claim bound elsewhere":  {volume("v", "3Gi", ref("c", "c")), holding("w"), v1.VolumeAvailable, true},
		"nobody can delete this": {deleting, nil, v1.VolumeFailed, false},
	} {
		p := forVolume(c.pv, c.claim)
		if p.Phase != c.phase || p.Unbind != c.unbind {
			t.Errorf("%s: %s unbind %v, want %s %v", name, p.Phase, p.Unbind, c.phase, c.unbind)
		}
	}
}
