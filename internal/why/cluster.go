package why

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

func explainNamespace(w *World, _, name string) *Answer {
	n := one[v1.Namespace](w, "", name)
	if n == nil {
		return nil
	}
	if n.DeletionTimestamp == nil {
		return found(Healthy, "Healthy", "nothing is wrong: the namespace is %s", n.Status.Phase).from("Namespace")
	}
	return namespaceHeld(w, n).fact("deleted", "%s ago", Age(w.Now, n.DeletionTimestamp.Time)).from("Namespace")
}

func namespaceCondition(n *v1.Namespace, t v1.NamespaceConditionType) string {
	for _, c := range n.Status.Conditions {
		if c.Type == t && c.Status == v1.ConditionTrue {
			return c.Message
		}
	}
	return ""
}

// namespaceHeld tells what keeps a namespace Terminating: an object that holds
// itself before an API group that holds every namespace.
func namespaceHeld(w *World, n *v1.Namespace) *Answer {
	down := groupDown(w, n)
	for _, o := range all[metav1.PartialObjectMetadata](w) {
		if o.Namespace == n.Name && len(o.Finalizers) > 0 && o.DeletionTimestamp != nil {
			a := found(Failing, "Finalizer", "%s %s holds the namespace: finalizer %s is not removed (deleted %s ago)",
				strings.ToLower(o.Kind), o.Name, strings.Join(o.Finalizers, ", "), Age(w.Now, o.DeletionTimestamp.Time)).
				at("metadata.finalizers of "+o.Kind).held(o.Kind, o.Namespace, o.Name).
				remedy("start the controller that owns the finalizer; it removes it")
			if down != nil {
				a.fact("also", "%s", down.Cause)
			}
			return a
		}
	}
	if down != nil {
		return down
	}
	if m := namespaceCondition(n, v1.NamespaceFinalizersRemaining); m != "" {
		return found(Failing, "Finalizer", "objects in the namespace have finalizers that nobody removes: %s", brief(m, 200))
	}
	if m := namespaceCondition(n, v1.NamespaceDeletionContentFailure); m != "" {
		return found(Failing, "ContentFailure", "objects in the namespace cannot be deleted: %s", brief(m, 240))
	}
	if m := namespaceCondition(n, v1.NamespaceContentRemaining); m != "" {
		return found(Waiting, "Content", "objects in the namespace are still being deleted: %s", brief(m, 200))
	}
	if len(n.Finalizers) > 0 {
		return found(Failing, "Finalizer", "finalizer %s of the namespace itself is not removed", strings.Join(n.Finalizers, ", ")).
			at("metadata.finalizers")
	}
	return found(Waiting, "Deleting", "it is being emptied; finalizers left: %v", n.Spec.Finalizers).at("spec.finalizers")
}

// groupDown tells which API group keeps namespaces from being emptied.
func groupDown(w *World, n *v1.Namespace) *Answer {
	m := namespaceCondition(n, v1.NamespaceDeletionDiscoveryFailure)
	if m == "" {
		return nil
	}
	for _, s := range all[apiregistrationv1.APIService](w) {
		if a := serviceDown(s); a != nil {
			a.Cause = "the namespace cannot be emptied: " + a.Cause
			return a.held("APIService", "", s.Name)
		}
	}
	return found(Failing, "Discovery", "the namespace cannot be emptied: an API group does not answer: %s", brief(m, 200))
}

var remaining = regexp.MustCompile(`(\S+?)\.? has \d+ resource instances`)

// remainingResources are the resources ("pods", "widgets.example.com") that a
// Terminating namespace still holds, from its conditions.
func remainingResources(n *v1.Namespace) (out []string) {
	for _, m := range remaining.FindAllStringSubmatch(namespaceCondition(n, v1.NamespaceContentRemaining), -1) {
		out = append(out, strings.TrimSuffix(m[1], "."))
	}
	return out
}

func serviceDown(s *apiregistrationv1.APIService) *Answer {
	for _, c := range s.Status.Conditions {
		if c.Type != apiregistrationv1.Available || c.Status == apiregistrationv1.ConditionTrue {
			continue
		}
		a := found(Failing, "APIServiceDown", "APIService %s is not available: %s: %s", s.Name, c.Reason, brief(c.Message, 160)).
			at("spec.service").from("APIService")
		if s.Spec.Service != nil {
			a.fact("served by", "Service %s/%s", s.Spec.Service.Namespace, s.Spec.Service.Name).
				remedy("berth why service %s/%s", s.Spec.Service.Namespace, s.Spec.Service.Name)
		}
		return a.remedy("start what serves it, or delete APIService %s if nothing does any more", s.Name)
	}
	return nil
}

func explainAPIService(w *World, _, name string) *Answer {
	s := one[apiregistrationv1.APIService](w, "", name)
	if s == nil {
		return nil
	}
	if a := serviceDown(s); a != nil {
		return a
	}
	return found(Healthy, "Healthy", "nothing is wrong: the API group is served").from("APIService")
}

func explainCSR(w *World, _, name string) *Answer {
	c := one[certificatesv1.CertificateSigningRequest](w, "", name)
	if c == nil {
		return nil
	}
	return signing(c, w.Now).fact("signer", "%s", c.Spec.SignerName).fact("asked by", "%s, %s ago", c.Spec.Username,
		Age(w.Now, c.CreationTimestamp.Time)).from("CertificateSigningRequest")
}

// signing tells how far a request came: approved, then signed.
func signing(c *certificatesv1.CertificateSigningRequest, now time.Time) *Answer {
	approved := false
	for _, d := range c.Status.Conditions {
		switch {
		case d.Status != v1.ConditionTrue:
		case d.Type == certificatesv1.CertificateDenied:
			return found(Ended, "Denied", "the request was denied: %s: %s", d.Reason, brief(d.Message, 200)).at("status.conditions[Denied]")
		case d.Type == certificatesv1.CertificateFailed:
			return found(Failing, "SignerFailed", "signer %s refused to sign: %s: %s", c.Spec.SignerName, d.Reason, brief(d.Message, 200)).
				at("spec.request")
		case d.Type == certificatesv1.CertificateApproved:
			approved = true
		}
	}
	if len(c.Status.Certificate) > 0 {
		return found(Ended, "Signed", "it is approved and signed")
	}
	if !approved {
		a := found(Waiting, "NotApproved", "nobody has approved it: no condition Approved for signer %s", c.Spec.SignerName).
			at("status.conditions")
		if strings.HasPrefix(c.Spec.SignerName, "kubernetes.io/kubelet-serving") {
			a.fact("approver", "serving certificates are approved if node and addresses match (docs/security.md), else by hand")
		}
		return a.remedy("berth kubectl certificate approve %s (look at it first)", c.Name)
	}
	a := found(Failing, "NotSigned", "it is approved, but signer %s has not signed it", c.Spec.SignerName).at("spec.signerName")
	if !strings.HasPrefix(c.Spec.SignerName, "kubernetes.io/") {
		a.Cause += ": berth does not run that signer"
		a.remedy("start the signer's controller")
	}
	return a
}

func explainHPA(w *World, namespace, name string) *Answer {
	h := one[autoscalingv2.HorizontalPodAutoscaler](w, namespace, name)
	if h == nil {
		return nil
	}
	return scaling(w, h).fact("replicas", "%d now, %d wanted", h.Status.CurrentReplicas, h.Status.DesiredReplicas).
		from("HorizontalPodAutoscaler")
}

func scaling(w *World, h *autoscalingv2.HorizontalPodAutoscaler) *Answer {
	target := h.Spec.ScaleTargetRef
	if w.absent(target.Kind, h.Namespace, target.Name) {
		return found(Failing, "TargetMissing", "its target %s %s does not exist", target.Kind, target.Name).at("spec.scaleTargetRef").
			held(target.Kind, h.Namespace, target.Name)
	}
	for _, c := range h.Status.Conditions {
		if c.Status != v1.ConditionFalse || c.Type == autoscalingv2.ScalingLimited {
			continue
		}
		if c.Reason == "ScalingDisabled" {
			return found(Healthy, c.Reason, "it is off: its target %s %s is scaled to 0", target.Kind, target.Name).at("spec.replicas")
		}
		m := c.Message
		if _, rest, ok := strings.Cut(m, "failed to get "); ok {
			m = "failed to get " + rest
		}
		for _, s := range all[apiregistrationv1.APIService](w) {
			if a := serviceDown(s); a != nil && strings.HasSuffix(s.Name, "metrics.k8s.io") {
				a.Cause = "it has no metrics: " + a.Cause
				return a.held("APIService", "", s.Name)
			}
		}
		return found(Failing, c.Reason, "it cannot scale (%s): %s", c.Reason, brief(m, 220)).at("spec.metrics").
			fact("message", "%s", brief(c.Message, 240))
	}
	for _, c := range h.Status.Conditions {
		if c.Type == autoscalingv2.ScalingLimited && c.Status == v1.ConditionTrue {
			return found(Healthy, c.Reason, "it is at its bound (minReplicas or maxReplicas): %s",
				brief(c.Message, 160)).at("spec.maxReplicas")
		}
	}
	if len(h.Status.Conditions) == 0 {
		return found(Waiting, "NotObserved", "the controller has not looked at it yet (%s old)", Age(w.Now, h.CreationTimestamp.Time))
	}
	return found(Healthy, "Healthy", "nothing is wrong: it scales %s %s", target.Kind, target.Name)
}

func explainBudget(w *World, namespace, name string) *Answer {
	b := one[policyv1.PodDisruptionBudget](w, namespace, name)
	if b == nil {
		return nil
	}
	st := b.Status
	counts := fmt.Sprintf("%d pods, %d healthy, %d needed", st.ExpectedPods, st.CurrentHealthy, st.DesiredHealthy)
	sel, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	switch {
	case err != nil:
		return found(Failing, "SelectorInvalid", "its selector is not valid: %v", err).at("spec.selector")
	case st.ExpectedPods == 0:
		return found(Failing, "NoPodMatches", "its selector %s matches no pod in namespace %s: it protects nothing", sel, namespace).
			at("spec.selector").from("PodDisruptionBudget")
	case st.DisruptionsAllowed > 0:
		return found(Healthy, "Healthy", "nothing is wrong: %d disruptions are allowed (%s)", st.DisruptionsAllowed, counts).
			from("PodDisruptionBudget")
	}
	if st.CurrentHealthy < st.DesiredHealthy {
		a := worstPod(w, selected(w, namespace, sel))
		if a != nil {
			a.Cause = fmt.Sprintf("it allows no eviction (%s): %s", counts, a.Cause)
			return a.from("PodDisruptionBudget", "Pod")
		}
	}
	field, rule := "spec.minAvailable", "minAvailable"
	if b.Spec.MaxUnavailable != nil {
		field, rule = "spec.maxUnavailable", "maxUnavailable "+b.Spec.MaxUnavailable.String()
	} else if b.Spec.MinAvailable != nil {
		rule += " " + b.Spec.MinAvailable.String()
	}
	return found(Failing, "BudgetBlocks", "%s allows no eviction: %s", rule, counts).at(field).from("PodDisruptionBudget").
		remedy("add replicas, or loosen the budget")
}

func explainIngress(w *World, namespace, name string) *Answer {
	i := one[networkingv1.Ingress](w, namespace, name)
	if i == nil {
		return nil
	}
	return ingress(w, i).from("Ingress")
}

func ingress(w *World, i *networkingv1.Ingress) *Answer {
	for n, t := range i.Spec.TLS {
		if w.absent("Secret", i.Namespace, t.SecretName) {
			return missingConfig("secret", i.Namespace, t.SecretName, "TLS").at(fmt.Sprintf("spec.tls[%d].secretName", n))
		}
	}
	for _, b := range backends(i) {
		if b.Service == nil {
			continue
		}
		if w.absent("Service", i.Namespace, b.Service.Name) {
			return found(Failing, "ServiceMissing", "its backend Service %s does not exist",
				b.Service.Name).at("spec.rules[].http.paths[].backend").
				held("Service", i.Namespace, b.Service.Name)
		}
		if s := one[v1.Service](w, i.Namespace, b.Service.Name); s != nil && !hasPort(s, b.Service.Port) {
			return found(Failing, "PortUnknown", "its backend Service %s has no port %s%s", s.Name, b.Service.Port.Name,
				number32(b.Service.Port.Number)).at("spec.rules[].http.paths[].backend.service.port").held("Service", s.Namespace, s.Name)
		}
	}
	class := i.Spec.IngressClassName
	switch {
	case class == nil:
		if len(i.Status.LoadBalancer.Ingress) == 0 {
			return found(Failing, "NoClass", "it names no ingressClassName and no controller took it: it has no address").
				at("spec.ingressClassName").remedy("name a class of `berth kubectl get ingressclass`")
		}
	case w.absent("IngressClass", "", *class):
		return found(Failing, "ClassMissing", "IngressClass %s does not exist", *class).at("spec.ingressClassName").
			held("IngressClass", "", *class).remedy("install an ingress controller that brings the class")
	case len(i.Status.LoadBalancer.Ingress) == 0:
		return found(Waiting, "NoAddress", "the controller of IngressClass %s has given it no address", *class).at("spec.ingressClassName")
	}
	return found(Healthy, "Healthy", "nothing is wrong: backends exist and it has an address")
}

func number32(n int32) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func backends(i *networkingv1.Ingress) (out []networkingv1.IngressBackend) {
	if i.Spec.DefaultBackend != nil {
		out = append(out, *i.Spec.DefaultBackend)
	}
	for _, r := range i.Spec.Rules {
		if r.HTTP != nil {
			for _, p := range r.HTTP.Paths {
				out = append(out, p.Backend)
			}
		}
	}
	return out
}

func hasPort(s *v1.Service, want networkingv1.ServiceBackendPort) bool {
	for _, p := range s.Spec.Ports {
		if want.Name != "" && p.Name == want.Name || want.Number != 0 && p.Port == want.Number {
			return true
		}
	}
	return false
}

// podsOf are the labels that select the pods of an owner in a list.
func podsOf(sel *metav1.LabelSelector) string {
	s, err := metav1.LabelSelectorAsSelector(sel)
	if err != nil {
		return labels.Nothing().String()
	}
	return s.String()
}
