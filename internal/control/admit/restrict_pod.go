package admit

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/control/auth/podref"
	"github.com/berth-dev/berth/internal/podutil"
)

func (r *restriction) judgePod(ctx context.Context, node string, a admission.Attributes) error {
	switch sub := a.GetSubresource(); sub {
	case "":
		switch a.GetOperation() {
		case admission.Create:
			return r.judgeMirror(ctx, node, a)
		case admission.Delete:
			return r.judgeOwnPod(ctx, node, a.GetNamespace(), a.GetName(), "node %q can only delete pods with spec.nodeName set to itself")
		}
		return fmt.Errorf("unexpected operation %q, node %q can only create and delete mirror pods", a.GetOperation(), node)
	case "status":
		return judgePodStatus(node, a)
	case "eviction":
		if a.GetOperation() != admission.Create {
			return fmt.Errorf("unexpected operation %s", a.GetOperation())
		}
		name := a.GetName()
		if eviction, ok := a.GetObject().(*policyv1.Eviction); ok && name == "" {
			name = eviction.Name
		}
		if name == "" {
			return errors.New("could not determine pod from request data")
		}
		return r.judgeOwnPod(ctx, node, a.GetNamespace(), name, "node %s can only evict pods with spec.nodeName set to itself")
	default:
		return fmt.Errorf("unexpected pod subresource %q, only 'status' and 'eviction' are allowed", sub)
	}
}

// findPod looks in the cache and then in the API: a node acts on pods the
// moment it sees them.
func (r *restriction) findPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return cachedOrLive(ctx, r.client,
		func() (*corev1.Pod, error) {
			pod, err := r.pods.Pods(namespace).Get(name)
			if err == nil && pod.Spec.NodeName == "" {
				// A node asks the moment it sees the binding, which may be
				// before this cache does: look again, live.
				return nil, apierrors.NewNotFound(corev1.Resource("pods"), name)
			}
			return pod, err
		},
		func(ctx context.Context) (*corev1.Pod, error) {
			return r.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		})
}

func (r *restriction) judgeOwnPod(ctx context.Context, node, namespace, name, refusal string) error {
	pod, err := r.findPod(ctx, namespace, name)
	if err != nil {
		return err
	}
	if pod.Spec.NodeName != node {
		return fmt.Errorf(refusal, node)
	}
	return nil
}

// judgeMirror lets a node create only what stands for a static pod of its own,
// and gives it nothing it could not read before.
func (r *restriction) judgeMirror(ctx context.Context, node string, a admission.Attributes) error {
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok {
		return wrongObject(a)
	}
	if !podutil.Mirror(pod) {
		return fmt.Errorf("pod does not have %q annotation, node %q can only create mirror pods", corev1.MirrorPodAnnotationKey, node)
	}
	if pod.Spec.NodeName != node {
		return fmt.Errorf("node %q can only create pods with spec.nodeName set to itself", node)
	}
	if err := r.judgeOwner(ctx, node, pod.OwnerReferences); err != nil {
		return err
	}
	if what := referenced(pod); what != "" {
		return fmt.Errorf("node %q can not create pods that reference %s", node, what)
	}
	return nil
}

// referenced names a kind of API object that running the pod takes, "" when it
// takes none. Each such object would become readable by the node, or work for
// it, because of a pod that the node itself wrote.
func referenced(pod *corev1.Pod) string {
	if refs := podref.OfPod(pod); len(refs) > 0 {
		if refs[0].Kind == podref.ServiceAccount {
			return "a service account"
		}
		return refs[0].Kind.String()
	}
	// Claims from templates have no name yet, and tokens are no objects.
	if len(pod.Spec.ResourceClaims) > 0 {
		return "resourceclaims"
	}
	for i := range pod.Spec.Volumes {
		switch v := &pod.Spec.Volumes[i]; {
		case v.CSI != nil:
			return "csidrivers"
		case v.Glusterfs != nil:
			return "endpoints"
		case v.Projected != nil:
			for j := range v.Projected.Sources {
				switch s := &v.Projected.Sources[j]; {
				case s.ServiceAccountToken != nil, s.PodCertificate != nil:
					return "a service account"
				case s.ClusterTrustBundle != nil:
					return "clustertrustbundles"
				}
			}
		}
	}
	return ""
}

func (r *restriction) judgeOwner(ctx context.Context, node string, owners []metav1.OwnerReference) error {
	if len(owners) > 1 {
		return fmt.Errorf("node %q can only create pods with a single owner reference set to itself", node)
	}
	if len(owners) == 0 || owners[0].APIVersion != "v1" || owners[0].Kind != "Node" || owners[0].Name != node {
		return fmt.Errorf("node %q can only create pods with an owner reference set to itself", node)
	}
	owner := owners[0]
	if !ptr.Deref(owner.Controller, false) {
		return fmt.Errorf("node %q can only create pods with a controller owner reference set to itself", node)
	}
	if ptr.Deref(owner.BlockOwnerDeletion, false) {
		return fmt.Errorf("node %q must not set blockOwnerDeletion on an owner reference", node)
	}
	self, err := cachedOrLive(ctx, r.client,
		func() (*corev1.Node, error) { return r.nodes.Get(node) },
		func(ctx context.Context) (*corev1.Node, error) {
			return r.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		})
	if err != nil {
		return err
	}
	if self.UID != owner.UID {
		return fmt.Errorf("node %s UID mismatch: expected %s got %s", node, owner.UID, self.UID)
	}
	return nil
}

func judgePodStatus(node string, a admission.Attributes) error {
	if a.GetOperation() != admission.Update {
		return fmt.Errorf("unexpected operation %q", a.GetOperation())
	}
	old, ok := a.GetOldObject().(*corev1.Pod)
	now, alsoOk := a.GetObject().(*corev1.Pod)
	if !ok || !alsoOk {
		return wrongObject(a)
	}
	switch {
	case old.Spec.NodeName != node:
		return fmt.Errorf("node %q can only update pod status for pods with spec.nodeName set to itself", node)
	case !equality.Semantic.DeepEqual(old.Labels, now.Labels):
		return fmt.Errorf("node %q cannot update labels through pod status", node)
	case !sameAnnotation(corev1.MirrorPodAnnotationKey, old, now):
		// With it the node's agent would take the pod for the shadow of a static
		// pod, and no one else would see that it still runs.
		return fmt.Errorf("node %q cannot add, change or remove the annotation %s through pod status", node, corev1.MirrorPodAnnotationKey)
	case !equality.Semantic.DeepEqual(old.Status.ResourceClaimStatuses, now.Status.ResourceClaimStatuses):
		return fmt.Errorf("node %q cannot update resource claim statuses", node)
	case !equality.Semantic.DeepEqual(old.Status.ExtendedResourceClaimStatus, now.Status.ExtendedResourceClaimStatus):
		return fmt.Errorf("node %q cannot update extended resource claim status", node)
	}
	return nil
}

func sameAnnotation(key string, a, b *corev1.Pod) bool {
	was, had := a.Annotations[key]
	is, has := b.Annotations[key]
	return was == is && had == has
}
