package admit

import (
	"context"
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/berth-dev/berth/internal/podutil"
)

// podSignerVerb lets a node ask for certificates of a signer that no volume of
// the pod names; the resource it is asked on is the signer, with a colon for
// its slash.
const podSignerVerb = "request-serviceaccounts-podcertificate-signer"

// judgePodCertificate lets a node ask for certificates of pods it runs, under
// their true names, and of the signers those pods name: signers take the
// request's word for all of it.
func (r *restriction) judgePodCertificate(ctx context.Context, node string, a admission.Attributes) error {
	if a.GetOperation() != admission.Create {
		return fmt.Errorf("unexpected operation %v", a.GetOperation())
	}
	if a.GetSubresource() != "" {
		return fmt.Errorf("unexpected subresource %v", a.GetSubresource())
	}
	request, ok := a.GetObject().(*certificatesv1.PodCertificateRequest)
	if !ok {
		return wrongObject(a)
	}
	s := &request.Spec
	if string(s.NodeName) != node {
		return fmt.Errorf("PodCertificateRequest.Spec.NodeName=%q, which is not the requesting node %q", s.NodeName, node)
	}
	what := a.GetNamespace() + "/" + s.PodName
	self, err := sameUID(ctx, s.NodeUID,
		func() (*corev1.Node, error) { return r.nodes.Get(node) },
		func(ctx context.Context) (*corev1.Node, error) {
			return r.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		})
	if err != nil {
		return fmt.Errorf("while retrieving node %q named in the PodCertificateRequest: %w", node, err)
	}
	if self.UID != s.NodeUID {
		return fmt.Errorf("PodCertificateRequest for pod %q names node UID %q, inconsistent with the running node (%q)", what, s.NodeUID,
			self.UID)
	}
	pod, err := r.podOfCertificate(ctx, a.GetNamespace(), s, what)
	if err != nil {
		return err
	}
	account, err := sameUID(ctx, s.ServiceAccountUID,
		func() (*corev1.ServiceAccount, error) {
			return r.accounts.ServiceAccounts(a.GetNamespace()).Get(s.ServiceAccountName)
		},
		func(ctx context.Context) (*corev1.ServiceAccount, error) {
			return r.client.CoreV1().ServiceAccounts(a.GetNamespace()).Get(ctx, s.ServiceAccountName, metav1.GetOptions{})
		})
	if err != nil {
		return fmt.Errorf("while retrieving service account %q named in the PodCertificateRequest: %w",
			a.GetNamespace()+"/"+s.ServiceAccountName, err)
	}
	if account.UID != s.ServiceAccountUID {
		return fmt.Errorf("PodCertificateRequest for pod %q names service account UID %q, which differs from the running service "+
			"account (%q)", what, s.ServiceAccountUID, account.UID)
	}
	return r.judgeSigner(ctx, a, pod, s)
}

func (r *restriction) podOfCertificate(ctx context.Context, namespace string, s *certificatesv1.PodCertificateRequestSpec,
	what string) (*corev1.Pod, error) {
	pod, err := sameUID(ctx, s.PodUID,
		func() (*corev1.Pod, error) { return r.findPod(ctx, namespace, s.PodName) },
		func(ctx context.Context) (*corev1.Pod, error) {
			return r.client.CoreV1().Pods(namespace).Get(ctx, s.PodName, metav1.GetOptions{})
		})
	switch {
	case err != nil:
		return nil, fmt.Errorf("while retrieving pod %q named in the PodCertificateRequest: %w", what, err)
	case pod.UID != s.PodUID:
		return nil, fmt.Errorf("PodCertificateRequest for pod %q contains pod UID (%q) which differs from running pod %q", what, s.PodUID,
			pod.UID)
	case pod.Spec.NodeName != string(s.NodeName):
		return nil, fmt.Errorf("pod %q is not running on node %q named in the PodCertificateRequest", what, s.NodeName)
	case podutil.Mirror(pod):
		return nil, fmt.Errorf("pod %q is a mirror pod", what)
	case pod.Spec.ServiceAccountName != s.ServiceAccountName:
		return nil, fmt.Errorf("PodCertificateRequest for pod %q contains serviceAccountName (%q) that differs from running pod (%q)", what,
			s.ServiceAccountName, pod.Spec.ServiceAccountName)
	}
	return pod, nil
}

// judgeSigner wants the signer in a volume of the pod, or the right to ask it
// for any pod of the service account.
func (r *restriction) judgeSigner(ctx context.Context, a admission.Attributes, pod *corev1.Pod,
	s *certificatesv1.PodCertificateRequestSpec) error {
	for i := range pod.Spec.Volumes {
		projected := pod.Spec.Volumes[i].Projected
		if projected == nil {
			continue
		}
		for j := range projected.Sources {
			if c := projected.Sources[j].PodCertificate; c != nil && c.SignerName == s.SignerName {
				return nil
			}
		}
	}
	decision, _, err := r.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: podSignerVerb, Namespace: a.GetNamespace(), APIGroup: certificatesv1.GroupName, APIVersion: "*",
		Resource: strings.ReplaceAll(s.SignerName, "/", ":"), Name: s.ServiceAccountName, ResourceRequest: true,
	})
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err != nil {
		return fmt.Errorf("signer %q not found in pod spec volume, and asking for verb %s: %w", s.SignerName, podSignerVerb, err)
	}
	return fmt.Errorf("signer %q not found in pod spec volume, %s is not authorized to request certificates of this signer", s.SignerName,
		a.GetUserInfo().GetName())
}

// sameUID is what the cache has, or, where that is missing or another object of
// the same name, what the API has: the cache may be a moment behind the node.
func sameUID[T metav1.Object](ctx context.Context, uid types.UID, cached func() (T, error), live func(ctx context.Context) (T, error)) (T,
	error) {
	object, err := cached()
	if err == nil && object.GetUID() == uid || err != nil && !apierrors.IsNotFound(err) {
		return object, err
	}
	return live(ctx)
}
