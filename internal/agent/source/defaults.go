package source

import (
	"bufio"
	"bytes"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func newBufioReader(b []byte) *bufio.Reader { return bufio.NewReader(bytes.NewReader(b)) }

// fill sets *p if it is the zero value.
func fill[T comparable](p *T, v T) {
	var none T
	if *p == none {
		*p = v
	}
}

// setDefaults completes a pod spec that did not pass through the API server.
func setDefaults(s *v1.PodSpec) {
	fill(&s.RestartPolicy, v1.RestartPolicyAlways)
	fill(&s.DNSPolicy, v1.DNSClusterFirst)
	fill(&s.SchedulerName, v1.DefaultSchedulerName)
	if s.TerminationGracePeriodSeconds == nil {
		s.TerminationGracePeriodSeconds = ptr.To(int64(v1.DefaultTerminationGracePeriodSeconds))
	}
	if s.SecurityContext == nil {
		s.SecurityContext = &v1.PodSecurityContext{}
	}
	if s.EnableServiceLinks == nil {
		s.EnableServiceLinks = ptr.To(v1.DefaultEnableServiceLinks)
	}
	for _, list := range [][]v1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			defaultContainer(&list[i], s.HostNetwork)
		}
	}
	for i := range s.Volumes {
		defaultVolume(&s.Volumes[i].VolumeSource)
	}
}

func defaultContainer(c *v1.Container, hostNetwork bool) {
	fill(&c.TerminationMessagePath, v1.TerminationMessagePathDefault)
	fill(&c.TerminationMessagePolicy, v1.TerminationMessageReadFile)
	policy := v1.PullIfNotPresent
	if ref := c.Image[strings.LastIndex(c.Image, "/")+1:]; !strings.Contains(ref, "@") &&
		(!strings.Contains(ref, ":") || strings.HasSuffix(ref, ":latest")) {
		policy = v1.PullAlways
	}
	fill(&c.ImagePullPolicy, policy)
	for i := range c.Ports {
		fill(&c.Ports[i].Protocol, v1.ProtocolTCP)
		if hostNetwork {
			fill(&c.Ports[i].HostPort, c.Ports[i].ContainerPort)
		}
	}
	for i := range c.Env {
		if f := c.Env[i].ValueFrom; f != nil && f.FieldRef != nil {
			fill(&f.FieldRef.APIVersion, "v1")
		}
	}
	for name, limit := range c.Resources.Limits {
		if _, ok := c.Resources.Requests[name]; !ok {
			if c.Resources.Requests == nil {
				c.Resources.Requests = v1.ResourceList{}
			}
			c.Resources.Requests[name] = limit
		}
	}
	for _, p := range []*v1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if p == nil {
			continue
		}
		fill(&p.TimeoutSeconds, 1)
		fill(&p.PeriodSeconds, 10)
		fill(&p.SuccessThreshold, 1)
		fill(&p.FailureThreshold, 3)
		defaultHTTP(p.HTTPGet)
		if p.GRPC != nil && p.GRPC.Service == nil {
			p.GRPC.Service = ptr.To("")
		}
	}
	if l := c.Lifecycle; l != nil {
		for _, h := range []*v1.LifecycleHandler{l.PostStart, l.PreStop} {
			if h != nil {
				defaultHTTP(h.HTTPGet)
			}
		}
	}
}

func defaultHTTP(h *v1.HTTPGetAction) {
	if h == nil {
		return
	}
	fill(&h.Path, "/")
	fill(&h.Scheme, v1.URISchemeHTTP)
	fill(&h.Port, intstr.FromInt32(80))
}

func defaultVolume(v *v1.VolumeSource) {
	if *v == (v1.VolumeSource{}) {
		v.EmptyDir = &v1.EmptyDirVolumeSource{}
	}
	if v.HostPath != nil && v.HostPath.Type == nil {
		v.HostPath.Type = ptr.To(v1.HostPathUnset)
	}
	if v.DownwardAPI != nil && v.DownwardAPI.DefaultMode == nil {
		v.DownwardAPI.DefaultMode = ptr.To(v1.DownwardAPIVolumeSourceDefaultMode)
	}
	if v.Projected != nil && v.Projected.DefaultMode == nil {
		v.Projected.DefaultMode = ptr.To(v1.ProjectedVolumeSourceDefaultMode)
	}
}
