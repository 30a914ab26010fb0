// Package podref lists the objects a pod or a volume refers to: what a node
// must be able to read to run it.
package podref

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/ephemeral"
)

// Kind is one of the kinds that can be referred to.
type Kind uint8

const (
	Secret Kind = iota + 1
	ConfigMap
	Claim // PersistentVolumeClaim
	Volume
	ServiceAccount
	ResourceClaim
)

// String is the resource name of the kind.
func (k Kind) String() string {
	switch k {
	case Secret:
		return "secrets"
	case ConfigMap:
		return "configmaps"
	case Claim:
		return "persistentvolumeclaims"
	case Volume:
		return "persistentvolumes"
	case ServiceAccount:
		return "serviceaccounts"
	case ResourceClaim:
		return "resourceclaims"
	}
	return "unknown"
}

// Ref names one object. Namespace is empty for a Volume.
type Ref struct {
	Kind            Kind
	Namespace, Name string
}

type collector struct {
	namespace string
	refs      []Ref
}

func (c *collector) add(kind Kind, name string) {
	if name != "" {
		c.refs = append(c.refs, Ref{kind, c.namespace, name})
	}
}

func (c *collector) addLocal(secret *corev1.LocalObjectReference) {
	if secret != nil {
		c.add(Secret, secret.Name)
	}
}

func (c *collector) distinct() []Ref {
	slices.SortFunc(c.refs, func(a, b Ref) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return slices.Compact(c.refs)
}

// OfPod returns what the pod refers to, each object once, sorted.
func OfPod(pod *corev1.Pod) []Ref {
	c := &collector{namespace: pod.Namespace}
	spec := &pod.Spec
	c.add(ServiceAccount, spec.ServiceAccountName)
	for i := range spec.ImagePullSecrets {
		c.add(Secret, spec.ImagePullSecrets[i].Name)
	}
	for i := range spec.InitContainers {
		c.environment(spec.InitContainers[i].Env, spec.InitContainers[i].EnvFrom)
	}
	for i := range spec.Containers {
		c.environment(spec.Containers[i].Env, spec.Containers[i].EnvFrom)
	}
	for i := range spec.EphemeralContainers {
		c.environment(spec.EphemeralContainers[i].Env, spec.EphemeralContainers[i].EnvFrom)
	}
	for i := range spec.Volumes {
		c.volume(pod, &spec.Volumes[i])
	}
	c.resourceClaims(pod)
	return c.distinct()
}

func (c *collector) environment(env []corev1.EnvVar, from []corev1.EnvFromSource) {
	for i := range env {
		switch source := env[i].ValueFrom; {
		case source == nil:
		case source.SecretKeyRef != nil:
			c.add(Secret, source.SecretKeyRef.Name)
		case source.ConfigMapKeyRef != nil:
			c.add(ConfigMap, source.ConfigMapKeyRef.Name)
		}
	}
	for i := range from {
		if from[i].SecretRef != nil {
			c.add(Secret, from[i].SecretRef.Name)
		}
		if from[i].ConfigMapRef != nil {
			c.add(ConfigMap, from[i].ConfigMapRef.Name)
		}
	}
}

func (c *collector) volume(pod *corev1.Pod, v *corev1.Volume) {
	switch {
	case v.Secret != nil:
		c.add(Secret, v.Secret.SecretName)
	case v.ConfigMap != nil:
		c.add(ConfigMap, v.ConfigMap.Name)
	case v.Projected != nil:
		for i := range v.Projected.Sources {
			if s := v.Projected.Sources[i].Secret; s != nil {
				c.add(Secret, s.Name)
			}
			if m := v.Projected.Sources[i].ConfigMap; m != nil {
				c.add(ConfigMap, m.Name)
			}
		}
	case v.PersistentVolumeClaim != nil:
		c.add(Claim, v.PersistentVolumeClaim.ClaimName)
	case v.Ephemeral != nil:
		c.add(Claim, ephemeral.VolumeClaimName(pod, v))
	case v.CSI != nil:
		c.addLocal(v.CSI.NodePublishSecretRef)
	case v.AzureFile != nil:
		c.add(Secret, v.AzureFile.SecretName)
	case v.CephFS != nil:
		c.addLocal(v.CephFS.SecretRef)
	case v.Cinder != nil:
		c.addLocal(v.Cinder.SecretRef)
	case v.FlexVolume != nil:
		c.addLocal(v.FlexVolume.SecretRef)
	case v.ISCSI != nil:
		c.addLocal(v.ISCSI.SecretRef)
	case v.RBD != nil:
		c.addLocal(v.RBD.SecretRef)
	case v.ScaleIO != nil:
		c.addLocal(v.ScaleIO.SecretRef)
	case v.StorageOS != nil:
		c.addLocal(v.StorageOS.SecretRef)
	}
}

// resourceClaims adds claims that the spec names, and those made from its
// templates, which only the status names. A name in the status that stands for
// no template of the spec counts for nothing: others than the controller of
// claims may write the status.
func (c *collector) resourceClaims(pod *corev1.Pod) {
	made := map[string]*string{}
	for i := range pod.Status.ResourceClaimStatuses {
		made[pod.Status.ResourceClaimStatuses[i].Name] = pod.Status.ResourceClaimStatuses[i].ResourceClaimName
	}
	for i := range pod.Spec.ResourceClaims {
		claim := &pod.Spec.ResourceClaims[i]
		name := claim.ResourceClaimName
		if name == nil && claim.ResourceClaimTemplateName != nil {
			name = made[claim.Name]
		}
		if name != nil {
			c.add(ResourceClaim, *name)
		}
	}
	if extended := pod.Status.ExtendedResourceClaimStatus; extended != nil {
		c.add(ResourceClaim, extended.ResourceClaimName)
	}
}

// SecretsOfVolume returns the secrets a node needs to mount the volume; those
// only a controller uses are left out.
func SecretsOfVolume(pv *corev1.PersistentVolume) []Ref {
	c := &collector{}
	if pv.Spec.ClaimRef != nil {
		c.namespace = pv.Spec.ClaimRef.Namespace
	}
	in := func(namespace, name string) {
		if namespace == "" {
			namespace = c.namespace
		}
		if name != "" && namespace != "" {
			c.refs = append(c.refs, Ref{Secret, namespace, name})
		}
	}
	remote := func(refs ...*corev1.SecretReference) {
		for _, ref := range refs {
			if ref != nil {
				in(ref.Namespace, ref.Name)
			}
		}
	}
	switch source := &pv.Spec.PersistentVolumeSource; {
	case source.CSI != nil:
		remote(source.CSI.NodePublishSecretRef, source.CSI.NodeStageSecretRef, source.CSI.NodeExpandSecretRef)
	case source.AzureFile != nil:
		if ns := source.AzureFile.SecretNamespace; ns != nil {
			in(*ns, source.AzureFile.SecretName)
		} else {
			in("", source.AzureFile.SecretName)
		}
	case source.CephFS != nil:
		remote(source.CephFS.SecretRef)
	case source.Cinder != nil:
		remote(source.Cinder.SecretRef)
	case source.FlexVolume != nil:
		remote(source.FlexVolume.SecretRef)
	case source.ISCSI != nil:
		remote(source.ISCSI.SecretRef)
	case source.RBD != nil:
		remote(source.RBD.SecretRef)
	case source.ScaleIO != nil:
		remote(source.ScaleIO.SecretRef)
	case source.StorageOS != nil:
		if ref := source.StorageOS.SecretRef; ref != nil {
			in(ref.Namespace, ref.Name)
		}
	}
	return c.distinct()
}
