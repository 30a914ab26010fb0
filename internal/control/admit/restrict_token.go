package admit

import (
	"context"
	"errors"
	"fmt"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/component-helpers/storage/ephemeral"
)

// audienceVerb lets a node ask for tokens with an audience no pod of its own
// mentions; the resource it is asked on is the audience.
const audienceVerb = "request-serviceaccounts-token-audience"

// judgeToken lets a node ask for tokens of pods it runs, for the audiences
// those pods name.
func (r *restriction) judgeToken(ctx context.Context, node string, a admission.Attributes) error {
	if a.GetOperation() != admission.Create || a.GetSubresource() != "token" {
		return nil
	}
	request, ok := a.GetObject().(*authenticationv1.TokenRequest)
	if !ok {
		return wrongObject(a)
	}
	to := request.Spec.BoundObjectRef
	if to == nil || to.APIVersion != "v1" || to.Kind != "Pod" || to.Name == "" {
		return errors.New("node requested token not bound to a pod")
	}
	if to.UID == "" {
		return errors.New("node requested token with a pod binding without a uid")
	}
	pod, err := r.findPod(ctx, a.GetNamespace(), to.Name)
	if err != nil {
		return err
	}
	if pod.UID != to.UID {
		return fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The object might have been "+
			"deleted and then recreated", to.UID)
	}
	if pod.Spec.NodeName != node {
		return errors.New("node requested token bound to a pod scheduled on a different node")
	}
	return r.judgeAudience(ctx, a, pod, request.Spec.Audiences)
}

func (r *restriction) judgeAudience(ctx context.Context, a admission.Attributes, pod *corev1.Pod, audiences []string) error {
	if len(audiences) > 1 {
		return errors.New("node may only request 0 or 1 audiences")
	}
	wanted := ""
	if len(audiences) == 1 {
		wanted = audiences[0]
	}
	// The default audience is one like the others: a pod whose volumes ask for
	// no token of it, as with automountServiceAccountToken: false, gives its
	// node none.
	if slices.Contains(r.audiencesOf(pod), wanted) {
		return nil
	}
	decision, _, err := r.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: audienceVerb, Namespace: a.GetNamespace(), APIVersion: "v1",
		Resource: wanted, Name: a.GetName(), ResourceRequest: true,
	})
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err != nil {
		return fmt.Errorf("audience %q not found in pod spec volume, and asking for verb %s: %w", wanted, audienceVerb, err)
	}
	return fmt.Errorf("audience %q not found in pod spec volume, %s is not authorized to request tokens for this audience", wanted,
		a.GetUserInfo().GetName())
}

// audiencesOf lists what the pod's volumes need tokens for: its projected
// volumes, and the drivers of its CSI volumes.
func (r *restriction) audiencesOf(pod *corev1.Pod) []string {
	var audiences []string
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		switch {
		case v.Projected != nil:
			for j := range v.Projected.Sources {
				if token := v.Projected.Sources[j].ServiceAccountToken; token != nil {
					audiences = append(audiences, token.Audience)
				}
			}
		case v.CSI != nil:
			audiences = append(audiences, r.driverAudiences(v.CSI.Driver)...)
		case v.PersistentVolumeClaim != nil:
			audiences = append(audiences, r.claimAudiences(pod.Namespace, v.PersistentVolumeClaim.ClaimName)...)
		case v.Ephemeral != nil:
			audiences = append(audiences, r.claimAudiences(pod.Namespace, ephemeral.VolumeClaimName(pod, v))...)
		}
	}
	return audiences
}

func (r *restriction) claimAudiences(namespace, name string) []string {
	claim, err := r.claims.PersistentVolumeClaims(namespace).Get(name)
	if err != nil || claim.Spec.VolumeName == "" {
		return nil
	}
	volume, err := r.volumes.Get(claim.Spec.VolumeName)
	if err != nil || volume.Spec.CSI == nil {
		return nil
	}
	return r.driverAudiences(volume.Spec.CSI.Driver)
}

func (r *restriction) driverAudiences(name string) []string {
	driver, err := r.drivers.Get(name)
	if err != nil {
		return nil
	}
	var audiences []string
	for _, t := range driver.Spec.TokenRequests {
		audiences = append(audiences, t.Audience)
	}
	return audiences
}
