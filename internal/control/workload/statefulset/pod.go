package statefulset

import (
	"fmt"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/control/workload/podcontrol"
)

// newPod makes the pod of an ordinal from a revision's template: with its
// name as identity, and its own claims in place of the claim templates.
func newPod(set *appsv1.StatefulSet, t *v1.PodTemplateSpec, c Creation) *v1.Pod {
	pod := podcontrol.FromTemplate(t, set.Namespace, set.Name, podcontrol.Owner(set, "apps/v1", "StatefulSet"))
	pod.GenerateName, pod.Name = "", fmt.Sprintf("%s-%d", set.Name, c.Ordinal)
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[appsv1.ControllerRevisionHashLabelKey] = c.Revision
	pod.Labels[appsv1.StatefulSetPodNameLabel] = pod.Name
	pod.Labels[appsv1.PodIndexLabel] = strconv.Itoa(c.Ordinal)
	pod.Spec.Hostname, pod.Spec.Subdomain = pod.Name, set.Spec.ServiceName
	var volumes []v1.Volume
	own := map[string]bool{}
	for i := range set.Spec.VolumeClaimTemplates {
		name := set.Spec.VolumeClaimTemplates[i].Name
		own[name] = true
		volumes = append(volumes,
			v1.Volume{Name: name, VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
				ClaimName: claimName(set, i, c.Ordinal)}}})
	}
	for _, v := range pod.Spec.Volumes {
		if !own[v.Name] {
			volumes = append(volumes, v)
		}
	}
	pod.Spec.Volumes = volumes
	return pod
}

func claimName(set *appsv1.StatefulSet, i, ordinal int) string {
	return fmt.Sprintf("%s-%s-%d", set.Spec.VolumeClaimTemplates[i].Name, set.Name, ordinal)
}

// claims makes the claims an ordinal's pod needs.
func claims(set *appsv1.StatefulSet, ordinal int) (out []*v1.PersistentVolumeClaim) {
	for i := range set.Spec.VolumeClaimTemplates {
		c := set.Spec.VolumeClaimTemplates[i].DeepCopy()
		c.Name, c.Namespace = claimName(set, i, ordinal), set.Namespace
		if set.Spec.Selector != nil {
			if c.Labels == nil {
				c.Labels = map[string]string{}
			}
			for k, v := range set.Spec.Selector.MatchLabels {
				c.Labels[k] = v
			}
		}
		c.OwnerReferences = wantOwners(set, nil, c.OwnerReferences, false)
		out = append(out, c)
	}
	return out
}

// wantOwners returns a claim's owner references under the retention policy:
// the set owns it if it goes with the set, the pod if it goes when scaled
// away, in which case condemned says that this is happening.
func wantOwners(set *appsv1.StatefulSet, pod *v1.Pod, have []metav1.OwnerReference, condemned bool) []metav1.OwnerReference {
	policy := set.Spec.PersistentVolumeClaimRetentionPolicy
	deleted, scaled := false, false
	if policy != nil {
		deleted = policy.WhenDeleted == appsv1.DeletePersistentVolumeClaimRetentionPolicyType
		scaled = policy.WhenScaled == appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	}
	var out []metav1.OwnerReference
	for _, r := range have {
		mine := r.UID == set.UID || (r.Kind == "Pod" && pod != nil && r.Name == pod.Name)
		if !mine {
			out = append(out, r)
		}
	}
	switch {
	case condemned && scaled && pod != nil:
		out = append(out, metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID})
	case deleted && !(condemned && scaled):
		out = append(out, metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: set.Name, UID: set.UID})
	}
	return out
}
