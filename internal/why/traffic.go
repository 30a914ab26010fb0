package why

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// explainService follows a packet's way: the VIP, the endpoints, the policies.
func explainService(w *World, namespace, name string) *Answer {
	s := one[v1.Service](w, namespace, name)
	if s == nil {
		return nil
	}
	for _, step := range []func(*World, *v1.Service) *Answer{serviceDeleting, noEndpoints, noAddress, droppedByPolicy, wrongPort} {
		if a := step(w, s); a != nil {
			return a.from("Service", "EndpointSlice", "Pod")
		}
	}
	if s.Spec.Type == v1.ServiceTypeExternalName {
		return found(Healthy, "ExternalName", "it is a DNS name for %s; berth sends no packets for it", s.Spec.ExternalName).
			at("spec.externalName").from("Service")
	}
	ready, _ := endpoints(w, s)
	return found(Healthy, "Healthy", "nothing is wrong: %d endpoints are ready", ready).from("Service", "EndpointSlice", "Pod")
}

func serviceDeleting(w *World, s *v1.Service) *Answer { return deletionHeld(w, s, "Service") }

func endpoints(w *World, s *v1.Service) (ready, others int) {
	for _, e := range all[discoveryv1.EndpointSlice](w) {
		if e.Namespace != s.Namespace || e.Labels[discoveryv1.LabelServiceName] != s.Name {
			continue
		}
		for _, p := range e.Endpoints {
			if p.Conditions.Ready == nil || *p.Conditions.Ready {
				ready++
			} else {
				others++
			}
		}
	}
	return ready, others
}

func sliceList(s *v1.Service) Read {
	return Read{Kind: "EndpointSlice", Namespace: s.Namespace, Labels: discoveryv1.LabelServiceName + "=" + s.Name}
}

func podList(s *v1.Service) Read {
	return Read{Kind: "Pod", Namespace: s.Namespace, Labels: labels.SelectorFromSet(s.Spec.Selector).String()}
}

// selected are the pods a selector matches.
func selected(w *World, namespace string, sel labels.Selector) []*v1.Pod {
	var out []*v1.Pod
	for _, p := range all[v1.Pod](w) {
		if p.Namespace == namespace && sel.Matches(labels.Set(p.Labels)) {
			out = append(out, p)
		}
	}
	return out
}

// noEndpoints tells why a Service has no ready endpoint.
func noEndpoints(w *World, s *v1.Service) *Answer {
	ready, _ := endpoints(w, s)
	if ready > 0 || s.Spec.Type == v1.ServiceTypeExternalName {
		return nil
	}
	if a := w.unreadable(sliceList(s)); a != nil {
		return a
	}
	if len(s.Spec.Selector) == 0 {
		return found(Failing, "NoSelector", "it has no selector, and no EndpointSlice names it: no endpoints").at("spec.selector").
			remedy("set spec.selector, or write an EndpointSlice with label %s=%s", discoveryv1.LabelServiceName, s.Name)
	}
	sel := labels.SelectorFromSet(s.Spec.Selector)
	pods := selected(w, s.Namespace, sel)
	if a := w.unreadable(podList(s)); a != nil && len(pods) == 0 {
		return a
	}
	if len(pods) == 0 {
		a := found(Failing, "NoPodMatches", "its selector %s matches no pod in namespace %s: no endpoints", sel,
			s.Namespace).at("spec.selector")
		if near := nearest(w, s); near != "" {
			a.fact("nearest", "%s", near)
		}
		return a.remedy("make spec.selector equal the labels of the pods")
	}
	if a := namedPort(s, pods); a != nil {
		return a
	}
	for _, p := range pods {
		if a := explainPod(w, p.Namespace, p.Name); a != nil && (a.State == Failing || a.State == Waiting) {
			a.Cause = fmt.Sprintf("no ready endpoint: %d pods match, none is Ready; pod %s: %s", len(pods), p.Name, a.Cause)
			return a.held("Pod", p.Namespace, p.Name)
		}
	}
	return found(Failing, "NoEndpoints", "no ready endpoint although %d pods match selector %s", len(pods), sel).at("spec.selector").
		remedy("berth status tells whether the controllers run")
}

// nearest is a pod that only one label keeps from being selected.
func nearest(w *World, s *v1.Service) string {
	best, text := 0, ""
	for _, p := range all[v1.Pod](w) {
		match := 0
		for k, v := range s.Spec.Selector {
			if p.Labels[k] == v {
				match++
			} else if p.Labels[k] != "" && best == 0 && text == "" {
				text = fmt.Sprintf("pod %s has %s=%s", p.Name, k, p.Labels[k])
			}
		}
		if match > best {
			best = match
			for _, k := range sortedKeys(s.Spec.Selector) {
				if p.Labels[k] != s.Spec.Selector[k] {
					text = fmt.Sprintf("pod %s has %s=%q, the selector wants %q", p.Name, k, p.Labels[k], s.Spec.Selector[k])
				}
			}
		}
	}
	return text
}

// namedPort tells of a targetPort name that no pod has.
func namedPort(s *v1.Service, pods []*v1.Pod) *Answer {
	for i, port := range s.Spec.Ports {
		if port.TargetPort.Type != intstr.String {
			continue
		}
		known := false
		for _, p := range pods {
			for _, c := range append(append([]v1.Container(nil), p.Spec.Containers...), p.Spec.InitContainers...) {
				for _, d := range c.Ports {
					known = known || d.Name == port.TargetPort.StrVal
				}
			}
		}
		if !known {
			return found(Failing, "PortNameUnknown", "targetPort %q of port %d names no container port of its %d pods",
				port.TargetPort.StrVal,
				port.Port, len(pods)).at(fmt.Sprintf("spec.ports[%d].targetPort", i)).held("Pod", s.Namespace, pods[0].Name).
				remedy("name a port of the container so, or give the number")
		}
	}
	return nil
}

// noAddress tells why a load balancer has no address.
func noAddress(w *World, s *v1.Service) *Answer {
	if s.Spec.Type != v1.ServiceTypeLoadBalancer || len(s.Status.LoadBalancer.Ingress) > 0 {
		return nil
	}
	if e := lastEvent(w.events("Service", s.Namespace, s.Name), "UnAvailableLoadBalancer", "SyncLoadBalancerFailed"); e != nil {
		return found(Failing, "LoadBalancerPending", "load balancer is pending: %s", brief(e.Message, 200)).at("spec.ports").from("events")
	}
	if c := s.Spec.LoadBalancerClass; c != nil {
		return found(Failing, "LoadBalancerClass", "load balancer is pending: no controller answers for loadBalancerClass %s", *c).
			at("spec.loadBalancerClass").remedy("install that controller, or leave the class out: berth then uses the nodes' addresses")
	}
	return found(Waiting, "LoadBalancerPending", "load balancer is pending: no controller has given it an address yet").at("spec.type").
		remedy("berth up --load-balancer=node gives Services the addresses of nodes")
}

// wrongPort tells of a port nobody listens on, as far as pods declare it.
func wrongPort(w *World, s *v1.Service) *Answer {
	if len(s.Spec.Selector) == 0 {
		return nil
	}
	pods := selected(w, s.Namespace, labels.SelectorFromSet(s.Spec.Selector))
	if len(pods) == 0 {
		return nil
	}
	if a := namedPort(s, pods); a != nil {
		return a
	}
	for i, port := range s.Spec.Ports {
		n := port.TargetPort.IntVal
		if port.TargetPort.Type != intstr.Int || n == 0 || declares(pods[0], n) || len(declared(pods[0])) == 0 {
			continue
		}
		// A port need not be declared, so this is a suspicion and no more.
		return found(Unknown, "PortUndeclared", "targetPort %d of port %d is not among the ports its pods declare (%s)", n, port.Port,
			strings.Join(declared(pods[0]), ", ")).at(fmt.Sprintf("spec.ports[%d].targetPort", i)).held("Pod", s.Namespace, pods[0].Name).
			remedy("set targetPort to the port the process listens on; a port need not be declared, so check that too")
	}
	return nil
}

func declared(p *v1.Pod) (out []string) {
	for _, c := range p.Spec.Containers {
		for _, d := range c.Ports {
			out = append(out, fmt.Sprint(d.ContainerPort))
		}
	}
	return out
}

// droppedByPolicy tells of policies that admit nobody to a Service's pods.
func droppedByPolicy(w *World, s *v1.Service) *Answer {
	for _, p := range selected(w, s.Namespace, labels.SelectorFromSet(s.Spec.Selector)) {
		if len(s.Spec.Selector) == 0 {
			return nil
		}
		for _, port := range s.Spec.Ports {
			if a := admitsNobody(w, p, port.TargetPort); a != nil {
				return a
			}
		}
	}
	return nil
}

// isolated tells of a healthy pod that policies cut off altogether.
func isolated(w *World, p *v1.Pod) *Answer {
	if a := admitsNobody(w, p, intstr.IntOrString{}); a != nil {
		a.State = Healthy
		a.Cause = "the pod runs, but " + a.Cause
		return a
	}
	egress := selecting(w, p, networkingv1.PolicyTypeEgress)
	for _, n := range egress {
		if len(n.Spec.Egress) > 0 {
			return nil
		}
	}
	if len(egress) > 0 {
		n := egress[0]
		return found(Healthy, "PolicyDrops",
			"the pod runs, but NetworkPolicy %s drops all that it sends (no egress rule, also none for DNS)",
			n.Name).at("spec.egress").held("NetworkPolicy", n.Namespace, n.Name).from("NetworkPolicy")
	}
	return nil
}

// selecting are the policies of one direction that select a pod.
func selecting(w *World, p *v1.Pod, t networkingv1.PolicyType) []*networkingv1.NetworkPolicy {
	var out []*networkingv1.NetworkPolicy
	for _, n := range all[networkingv1.NetworkPolicy](w) {
		sel, err := metav1.LabelSelectorAsSelector(&n.Spec.PodSelector)
		if err != nil || n.Namespace != p.Namespace || !sel.Matches(labels.Set(p.Labels)) {
			continue
		}
		for _, have := range n.Spec.PolicyTypes {
			if have == t {
				out = append(out, n)
			}
		}
	}
	return out
}

// admitsNobody finds a policy that selects the pod where no policy has a rule
// for the port. A port of zero asks for any rule at all.
func admitsNobody(w *World, p *v1.Pod, port intstr.IntOrString) *Answer {
	policies := selecting(w, p, networkingv1.PolicyTypeIngress)
	rules := 0
	for _, n := range policies {
		for _, r := range n.Spec.Ingress {
			rules++
			if len(r.Ports) == 0 || port.IntVal == 0 && port.StrVal == "" {
				return nil
			}
			for _, q := range r.Ports {
				if q.Port == nil || *q.Port == port || q.EndPort != nil || q.Port.Type != port.Type {
					return nil
				}
			}
		}
	}
	if len(policies) == 0 {
		return nil
	}
	n := policies[0]
	what := "no ingress rule admits anybody"
	if rules > 0 {
		what = "no ingress rule is for port " + port.String()
	}
	return found(Failing, "PolicyDrops", "NetworkPolicy %s drops what is sent to pod %s: %s", n.Name, p.Name, what).at("spec.ingress").
		held("NetworkPolicy", n.Namespace, n.Name).remedy("add an ingress rule for the clients and the port").from("NetworkPolicy")
}

// blockingBudget is a budget that covers a pod and allows no disruption.
func blockingBudget(w *World, p *v1.Pod) *policyv1.PodDisruptionBudget {
	for _, b := range all[policyv1.PodDisruptionBudget](w) {
		sel, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err == nil && b.Namespace == p.Namespace && sel.Matches(labels.Set(p.Labels)) && b.Status.DisruptionsAllowed == 0 &&
			b.Status.ExpectedPods > 0 {
			return b
		}
	}
	return nil
}
