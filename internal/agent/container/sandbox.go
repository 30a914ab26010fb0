package container

import (
	"fmt"
	"hash/fnv"
	"path/filepath"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/agent/network"
)

// Labels and annotations by which the agent and other tools find what belongs
// to a pod in the runtime.
const (
	LabelPodName       = "io.kubernetes.pod.name"
	LabelPodNamespace  = "io.kubernetes.pod.namespace"
	LabelPodUID        = "io.kubernetes.pod.uid"
	LabelContainerName = "io.kubernetes.container.name"

	AnnotationHash                     = "io.kubernetes.container.hash"
	AnnotationRestartCount             = "io.kubernetes.container.restartCount"
	AnnotationTerminationMessagePath   = "io.kubernetes.container.terminationMessagePath"
	AnnotationTerminationMessagePolicy = "io.kubernetes.container.terminationMessagePolicy"
	AnnotationPreStop                  = "io.kubernetes.container.preStopHandler"
	AnnotationPorts                    = "io.kubernetes.container.ports"
	AnnotationTerminationGrace         = "io.kubernetes.pod.terminationGracePeriod"
	AnnotationDeletionGrace            = "io.kubernetes.pod.deletionGracePeriod"
)

// DefaultLogsDir is where pod logs go when the input names no directory.
const DefaultLogsDir = "/var/log/pods"

// logDir is the directory of a pod's logs.
func logDir(logsDir string, pod *v1.Pod) string {
	if logsDir == "" {
		logsDir = DefaultLogsDir
	}
	return filepath.Join(logsDir, pod.Namespace+"_"+pod.Name+"_"+string(pod.UID))
}

// LogPath is a container's log file relative to logDir.
func LogPath(container string, attempt uint32) string {
	return filepath.Join(container, strconv.FormatUint(uint64(attempt), 10)+".log")
}

// Warnings are the events that configuring this pod should lead to:
// resolver limits and a missing cluster resolver.
func Warnings(in Input) []network.Warning {
	_, w, err := network.ComposeDNS(dnsInput(in))
	if err != nil {
		return nil
	}
	return w
}

func dnsInput(in Input) network.DNSInput {
	return network.DNSInput{
		Pod: in.Pod, ClusterDNS: in.ClusterDNS, ClusterDomain: in.ClusterDomain,
		Host: in.HostResolver, NoHost: in.NoHostResolver, HostIP: first(in.NodeIPs),
	}
}

// SandboxConfig is the runtime's configuration of a pod's sandbox.
func SandboxConfig(in Input) (*runtimeapi.PodSandboxConfig, error) {
	pod := in.Pod
	if u := pod.Spec.HostUsers; u != nil && !*u && (in.UserNamespace == nil || !in.Features.UserNamespaces) {
		return nil, fmt.Errorf("pod %s/%s wants a user namespace (hostUsers: false): its runtime handler does not support them",
			pod.Namespace, pod.Name)
	}
	dns, _, err := network.ComposeDNS(dnsInput(in))
	if err != nil {
		return nil, fmt.Errorf("composing DNS of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	out := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: in.Attempt,
		},
		LogDirectory: logDir(in.LogsDir, pod),
		DnsConfig:    &runtimeapi.DNSConfig{Servers: dns.Servers, Searches: dns.Searches, Options: dns.Options},
		Labels:       podLabels(pod),
		Annotations:  copyMap(pod.Annotations),
	}
	if !pod.Spec.HostNetwork {
		_, _, fqdn, err := network.Hostname(pod, in.ClusterDomain)
		if err != nil {
			return nil, err
		}
		out.Hostname = fqdn
		out.PortMappings = portMappings(pod)
	}
	out.Linux = sandboxLinux(in)
	return out, nil
}

func podLabels(pod *v1.Pod) map[string]string {
	out := copyMap(pod.Labels)
	out[LabelPodName] = pod.Name
	out[LabelPodNamespace] = pod.Namespace
	out[LabelPodUID] = string(pod.UID)
	return out
}

func copyMap(m map[string]string) map[string]string {
	out := make(map[string]string, len(m)+3)
	for k, v := range m {
		out[k] = v
	}
	return out
}

func portMappings(pod *v1.Pod) []*runtimeapi.PortMapping {
	var out []*runtimeapi.PortMapping
	for i := range pod.Spec.Containers {
		for _, p := range pod.Spec.Containers[i].Ports {
			if p.HostPort <= 0 {
				continue
			}
			out = append(out, &runtimeapi.PortMapping{
				Protocol:      protocol(p.Protocol),
				ContainerPort: p.ContainerPort,
				HostPort:      p.HostPort,
				HostIp:        p.HostIP,
			})
		}
	}
	return out
}

func protocol(p v1.Protocol) runtimeapi.Protocol {
	switch p {
	case v1.ProtocolUDP:
		return runtimeapi.Protocol_UDP
	case v1.ProtocolSCTP:
		return runtimeapi.Protocol_SCTP
	}
	return runtimeapi.Protocol_TCP
}

func sandboxLinux(in Input) *runtimeapi.LinuxPodSandboxConfig {
	pod := in.Pod
	sc := &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: namespaces(in, nil),
		// The sandbox runs nothing of the user's; the default profile is free.
		Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
	}
	for _, c := range All(pod) {
		if c.SecurityContext != nil && isTrue(c.SecurityContext.Privileged) {
			sc.Privileged = true
		}
	}
	if p := pod.Spec.SecurityContext; p != nil {
		if p.RunAsUser != nil {
			sc.RunAsUser = &runtimeapi.Int64Value{Value: *p.RunAsUser}
		}
		if p.RunAsGroup != nil {
			sc.RunAsGroup = &runtimeapi.Int64Value{Value: *p.RunAsGroup}
		}
		sc.SelinuxOptions = selinux(p.SELinuxOptions)
	}
	sc.SupplementalGroups, sc.SupplementalGroupsPolicy = groups(in, nil)
	out := &runtimeapi.LinuxPodSandboxConfig{
		CgroupParent: in.CgroupParent, SecurityContext: sc, Sysctls: sysctls(pod),
	}
	out.Resources, out.Overhead = sandboxResources(in)
	return out
}

// terminationFile is the host file of a container's termination message. Its
// name follows from pod, container and attempt, so that a restarted agent
// finds it again.
func terminationFile(in Input, c *v1.Container, attempt uint32) string {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s/%s/%d", in.Pod.UID, c.Name, attempt)
	return filepath.Join(PodDir(in.RootDir, string(in.Pod.UID)), "containers", c.Name, fmt.Sprintf("%08x", h.Sum32()))
}

// PodDir is the directory of everything the agent keeps for a pod.
func PodDir(rootDir, uid string) string { return filepath.Join(rootDir, "pods", uid) }

func hostsPath(in Input) string {
	return filepath.Join(PodDir(in.RootDir, string(in.Pod.UID)), "etc-hosts")
}

func absolute(p string) string {
	if strings.HasPrefix(p, "/") {
		return p
	}
	return "/" + p
}
