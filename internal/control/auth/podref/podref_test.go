package podref

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// filler sets every field of a value, so that a reference the API gains later
// and this package does not know shows up as a test failure.
type filler struct{ count int }

func (f *filler) fill(v reflect.Value, depth int) {
	if depth > 12 {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem(), depth+1)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				f.fill(v.Field(i), depth+1)
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		f.fill(v.Index(0), depth+1)
	case reflect.String:
		f.count++
		v.SetString(fmt.Sprintf("s%d", f.count))
	}
}

// TestEveryVolumeSourceWithASecretIsKnown fills each volume source in turn and
// compares the references found with the fields whose name says secret.
func TestEveryVolumeSourceWithASecretIsKnown(t *testing.T) {
	source := reflect.TypeFor[corev1.VolumeSource]()
	for i := range source.NumField() {
		name := source.Field(i).Name
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"},
			Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v"}}}}
		field := reflect.ValueOf(&pod.Spec.Volumes[0].VolumeSource).Elem().Field(i)
		(&filler{}).fill(field, 0)
		mentions := mentionsSecret(field.Type(), 0)
		if found := slices.ContainsFunc(OfPod(pod), func(r Ref) bool { return r.Kind == Secret }); found != mentions {
			t.Errorf("volume source %s: secret found %v, its type mentions one %v", name, found, mentions)
		}
	}
	pvSource := reflect.TypeFor[corev1.PersistentVolumeSource]()
	for i := range pvSource.NumField() {
		pv := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: "ns"}}}
		field := reflect.ValueOf(&pv.Spec.PersistentVolumeSource).Elem().Field(i)
		(&filler{}).fill(field, 0)
		if mentions, found := mentionsSecret(field.Type(), 0), len(SecretsOfVolume(pv)) > 0; found != mentions {
			t.Errorf("persistent volume source %s: secret found %v, its type mentions one %v", pvSource.Field(i).Name, found, mentions)
		}
	}
}

func mentionsSecret(t reflect.Type, depth int) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice:
		return mentionsSecret(t.Elem(), depth)
	case reflect.Struct:
		if t.Name() == "PersistentVolumeClaimTemplate" || depth > 6 {
			return false
		}
		for i := range t.NumField() {
			name := t.Field(i).Name
			if strings.HasSuffix(name, "SecretRef") || name == "SecretName" || name == "Secret" || mentionsSecret(t.Field(i).Type,
				depth+1) {
				return true
			}
		}
	}
	return false
}

func TestOfPod(t *testing.T) {
	name := "claim"
	env := []corev1.EnvVar{
		{Name: "A", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: "env-s"}}}},
		{Name: "B", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: "env-c"}}}},
	}
	from := []corev1.EnvFromSource{
		{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "from-s"}}},
		{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "from-c"}}},
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"},
		Spec: corev1.PodSpec{
			ServiceAccountName:  "sa",
			ImagePullSecrets:    []corev1.LocalObjectReference{{Name: "pull"}, {Name: "env-s"}},
			InitContainers:      []corev1.Container{{Env: env[:1]}},
			Containers:          []corev1.Container{{Env: env[1:]}},
			EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{EnvFrom: from}}},
			Volumes: []corev1.Volume{
				{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
				{Name: "pvc", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
					ClaimName: "data"}}},
			},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "r", ResourceClaimName: &name}},
		},
		Status: corev1.PodStatus{ExtendedResourceClaimStatus: &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "ext"}},
	}
	var got []string
	for _, r := range OfPod(pod) {
		got = append(got, r.Kind.String()+":"+r.Namespace+"/"+r.Name)
	}
	want := "secrets:ns/env-s secrets:ns/from-s secrets:ns/pull configmaps:ns/env-c configmaps:ns/from-c " +
		"persistentvolumeclaims:ns/data persistentvolumeclaims:ns/p-scratch serviceaccounts:ns/sa resourceclaims:ns/claim " +
		"resourceclaims:ns/ext"
	if strings.Join(got, " ") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, " "), want)
	}
}

// TestClaimsOfTheStatusAreOfTheSpec is an exploit: anyone who may write the status
// of pods lists claims there that the pod does not use.
func TestClaimsOfTheStatusAreOfTheSpec(t *testing.T) {
	template, made, stolen := "t", "p-t-x1", "stolen"
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"},
		Spec:       corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &template}}},
		Status: corev1.PodStatus{ResourceClaimStatuses: []corev1.PodResourceClaimStatus{
			{Name: "gpu", ResourceClaimName: &made}, {Name: "other", ResourceClaimName: &stolen},
		}},
	}
	if got := OfPod(pod); !slices.Equal(got, []Ref{{ResourceClaim, "ns", made}}) {
		t.Errorf("the pod refers to %v, want the claim made from its template alone", got)
	}
	direct := "direct"
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &direct}}
	if got := OfPod(pod); !slices.Equal(got, []Ref{{ResourceClaim, "ns", direct}}) {
		t.Errorf("the pod refers to %v, want the claim it names alone", got)
	}
}
