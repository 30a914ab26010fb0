package defaults

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// fileMode is the mode of files in secret, configMap, downwardAPI and
// projected volumes: rw-r--r--.
const fileMode int32 = 0o644

// Pod fills a whole Pod. What is done here and not in podSpec holds for pods
// only: a template keeps those fields unset so that its author's intent stays
// visible to the controllers that stamp pods from it.
func Pod(p *v1.Pod) {
	podSpec(&p.Spec)
	fill(&p.Spec.EnableServiceLinks, v1.DefaultEnableServiceLinks)
	for i := range p.Spec.Containers {
		podContainer(&p.Spec.Containers[i], p.Spec.HostNetwork)
	}
	for i := range p.Spec.InitContainers {
		podContainer(&p.Spec.InitContainers[i], p.Spec.HostNetwork)
	}
	podLevelRequests(p)
}

// podContainer copies limits to missing requests and, on the host's network,
// container ports to missing host ports.
func podContainer(c *v1.Container, hostNetwork bool) {
	for name, limit := range c.Resources.Limits {
		if _, asked := c.Resources.Requests[name]; asked {
			continue
		}
		if c.Resources.Requests == nil {
			c.Resources.Requests = v1.ResourceList{}
		}
		c.Resources.Requests[name] = limit.DeepCopy()
	}
	if hostNetwork {
		for i := range c.Ports {
			zero(&c.Ports[i].HostPort, c.Ports[i].ContainerPort)
		}
	}
}

// podLevelRequests completes pod-level requests of a pod that has pod-level
// limits: what its containers ask for together, or else the limit itself.
func podLevelRequests(p *v1.Pod) {
	r := p.Spec.Resources
	if r == nil || len(r.Limits) == 0 {
		return
	}
	requests := v1.ResourceList{}
	for name, q := range r.Requests {
		requests[name] = q
	}
	aggregated := resourcehelper.AggregateContainerRequests(p, resourcehelper.PodResourcesOptions{})
	for name, q := range aggregated {
		if _, set := requests[name]; !set && resourcehelper.IsSupportedPodLevelResource(name) && !isHugePage(name) {
			requests[name] = q.DeepCopy()
		}
	}
	for name, limit := range r.Limits {
		if _, set := requests[name]; !set {
			requests[name] = limit.DeepCopy()
		}
	}
	r.Requests = requests
}

func isHugePage(name v1.ResourceName) bool {
	return strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}

// podTemplate fills the template inside a workload.
func podTemplate(t *v1.PodTemplateSpec) { podSpec(&t.Spec) }

// podSpec fills what pods and templates share.
func podSpec(s *v1.PodSpec) {
	if s.ServiceAccountName == "" {
		s.ServiceAccountName = s.DeprecatedServiceAccount
	}
	s.DeprecatedServiceAccount = s.ServiceAccountName
	zero(&s.DNSPolicy, v1.DNSClusterFirst)
	zero(&s.RestartPolicy, v1.RestartPolicyAlways)
	zero(&s.SchedulerName, v1.DefaultSchedulerName)
	fill(&s.TerminationGracePeriodSeconds, int64(v1.DefaultTerminationGracePeriodSeconds))
	fill(&s.SecurityContext, v1.PodSecurityContext{})
	for i := range s.Volumes {
		volume(&s.Volumes[i])
	}
	for i := range s.InitContainers {
		container(&s.InitContainers[i])
	}
	for i := range s.Containers {
		container(&s.Containers[i])
	}
	for i := range s.EphemeralContainers {
		ephemeralContainer(&s.EphemeralContainers[i])
	}
	roundUp(s.Overhead)
	if s.Resources != nil {
		roundUp(s.Resources.Limits)
		roundUp(s.Resources.Requests)
	}
}

func ephemeralContainer(e *v1.EphemeralContainer) {
	// The two structs have the same fields by the API's own promise.
	c := v1.Container(e.EphemeralContainerCommon)
	container(&c)
	e.EphemeralContainerCommon = v1.EphemeralContainerCommon(c)
}

func container(c *v1.Container) {
	zero(&c.ImagePullPolicy, pullPolicy(c.Image))
	zero(&c.TerminationMessagePath, v1.TerminationMessagePathDefault)
	zero(&c.TerminationMessagePolicy, v1.TerminationMessageReadFile)
	for i := range c.Ports {
		zero(&c.Ports[i].Protocol, v1.ProtocolTCP)
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil {
			fieldRef(from.FieldRef)
			if from.FileKeyRef != nil {
				fill(&from.FileKeyRef.Optional, false)
			}
		}
	}
	roundUp(c.Resources.Limits)
	roundUp(c.Resources.Requests)
	probe(c.LivenessProbe)
	probe(c.ReadinessProbe)
	probe(c.StartupProbe)
	if c.Lifecycle != nil {
		lifecycleHandler(c.Lifecycle.PostStart)
		lifecycleHandler(c.Lifecycle.PreStop)
	}
}

// pullPolicy is Always for an image whose tag is, or would become, latest. A
// digest pins the content as a tag does.
func pullPolicy(image string) v1.PullPolicy {
	name, digest, pinned := strings.Cut(image, "@")
	if image == "" || (pinned && digest == "") {
		return v1.PullIfNotPresent
	}
	last := name[strings.LastIndex(name, "/")+1:]
	_, tag, tagged := strings.Cut(last, ":")
	if tag == "latest" || (!tagged && !pinned) {
		return v1.PullAlways
	}
	return v1.PullIfNotPresent
}

func probe(p *v1.Probe) {
	if p == nil {
		return
	}
	zero(&p.TimeoutSeconds, 1)
	zero(&p.PeriodSeconds, 10)
	zero(&p.SuccessThreshold, 1)
	zero(&p.FailureThreshold, 3)
	httpGet(p.HTTPGet)
	if p.GRPC != nil {
		fill(&p.GRPC.Service, "")
	}
}

func lifecycleHandler(h *v1.LifecycleHandler) {
	if h != nil {
		httpGet(h.HTTPGet)
	}
}

func httpGet(g *v1.HTTPGetAction) {
	if g != nil {
		zero(&g.Path, "/")
		zero(&g.Scheme, v1.URISchemeHTTP)
	}
}

func fieldRef(f *v1.ObjectFieldSelector) {
	if f != nil {
		zero(&f.APIVersion, "v1")
	}
}

// roundUp drops what is finer than a thousandth: no resource is accounted
// below that, and a stored value must compare equal to what is accounted.
func roundUp(list v1.ResourceList) {
	for name, q := range list {
		q.RoundUp(-3)
		list[name] = q
	}
}
