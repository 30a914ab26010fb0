// Package runtime speaks CRI to the container runtime and keeps an event-fed
// picture of what runs, pod by pod.
//
// The picture is plain data: callers get immutable snapshots and a signal
// which pod changed. Events of the runtime (GetContainerEvents) feed it; a slow
// relist is only a net under them, and the only source for runtimes that have
// no events.
package runtime

import (
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"
)

// Annotations that travel with a container so that a restarted agent knows
// what it is without any file of its own.
const (
	AnnotationHash              = "io.kubernetes.container.hash"
	AnnotationRestartCount      = "io.kubernetes.container.restartCount"
	AnnotationTerminationPath   = "io.kubernetes.container.terminationMessagePath"
	AnnotationTerminationPolicy = "io.kubernetes.container.terminationMessagePolicy"
)

// State is how far one container got. The numbers are ordered: a container
// only ever moves to a higher one, which separates late events from news.
type State int

// The states in the order a container passes them. Unknown is last because the
// runtime reports it for a container it lost track of; only removal follows.
const (
	Created State = iota + 1
	Running
	Exited
	Unknown
)

// String names the state as transcripts print it.
func (s State) String() string {
	switch s {
	case Created:
		return "created"
	case Running:
		return "running"
	case Exited:
		return "exited"
	case Unknown:
		return "unknown"
	}
	return "state(" + strconv.Itoa(int(s)) + ")"
}

// mount is one mount of a container: where it comes from and where it is seen.
type mount struct {
	HostPath, ContainerPath string
}

// Container is one instance of one container of a pod. It is never changed
// after it entered the cache.
type Container struct {
	ID        string
	SandboxID string
	// Name is the name in the pod's spec.
	Name string
	// Attempt is the restart count this instance carries: 0 for the first.
	Attempt uint32
	State   State

	CreatedAt, StartedAt, FinishedAt time.Time

	// ExitCode, Reason and Message are as the runtime reports them; only
	// meaningful in state Exited.
	ExitCode int32
	Reason   string
	Message  string

	// Image is the name asked for, ImageRef the digest reference that runs.
	Image, ImageRef string
	// Hash is the fingerprint of the definition the instance was made from.
	Hash string

	TerminationPath, TerminationPolicy string

	LogPath   string
	Mounts    []mount
	Resources *runtimeapi.ContainerResources
	User      *runtimeapi.ContainerUser
}

// Sandbox is one sandbox of a pod, never changed after it entered the cache.
type Sandbox struct {
	ID        string
	Attempt   uint32
	Ready     bool
	CreatedAt time.Time
	// IPs of the pod's network, primary first; empty on the host network.
	IPs []string
	// HostNetwork is whether it shares the node's network namespace.
	HostNetwork bool
	// Handler is the runtime handler it was started with.
	Handler string
}

// Pod is everything the runtime holds for one pod UID. Sandboxes, and the
// instances of one container among Containers, are newest first: by attempt,
// since a clock may go back. It is immutable.
type Pod struct {
	UID             types.UID
	Namespace, Name string
	Sandboxes       []*Sandbox
	Containers      []*Container
}

// Empty tells whether the runtime holds nothing for the pod.
func (p *Pod) Empty() bool {
	return p == nil || len(p.Sandboxes) == 0 && len(p.Containers) == 0
}

// Newest returns the newest instance of the named container, or nil.
func (p *Pod) Newest(name string) *Container {
	if p == nil {
		return nil
	}
	for _, c := range p.Containers {
		if c.Name == name {
			return c
		}
	}
	return nil
}

func nanos(n int64) time.Time {
	if n <= 0 {
		return time.Time{}
	}
	return time.Unix(0, n)
}

func containerState(s runtimeapi.ContainerState) State {
	switch s {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		return Created
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		return Running
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		return Exited
	}
	return Unknown
}

func newContainer(s *runtimeapi.ContainerStatus, sandboxID string) *Container {
	c := &Container{
		ID:                s.GetId(),
		SandboxID:         sandboxID,
		Name:              s.GetLabels()[kubelettypes.KubernetesContainerNameLabel],
		Attempt:           s.GetMetadata().GetAttempt(),
		State:             containerState(s.GetState()),
		CreatedAt:         nanos(s.GetCreatedAt()),
		StartedAt:         nanos(s.GetStartedAt()),
		FinishedAt:        nanos(s.GetFinishedAt()),
		ExitCode:          s.GetExitCode(),
		Reason:            s.GetReason(),
		Message:           s.GetMessage(),
		Image:             s.GetImage().GetImage(),
		ImageRef:          s.GetImageRef(),
		Hash:              s.GetAnnotations()[AnnotationHash],
		TerminationPath:   s.GetAnnotations()[AnnotationTerminationPath],
		TerminationPolicy: s.GetAnnotations()[AnnotationTerminationPolicy],
		LogPath:           s.GetLogPath(),
		Resources:         s.GetResources(),
		User:              s.GetUser(),
	}
	if c.Name == "" {
		c.Name = s.GetMetadata().GetName()
	}
	if n, err := strconv.ParseUint(s.GetAnnotations()[AnnotationRestartCount], 10, 32); err == nil {
		c.Attempt = uint32(n)
	}
	for _, m := range s.GetMounts() {
		c.Mounts = append(c.Mounts, mount{HostPath: m.GetHostPath(), ContainerPath: m.GetContainerPath()})
	}
	return c
}

func newSandbox(s *runtimeapi.PodSandboxStatus) *Sandbox {
	b := &Sandbox{
		ID:          s.GetId(),
		Attempt:     s.GetMetadata().GetAttempt(),
		Ready:       s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY,
		CreatedAt:   nanos(s.GetCreatedAt()),
		HostNetwork: s.GetLinux().GetNamespaces().GetOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE,
		Handler:     s.GetRuntimeHandler(),
	}
	if ip := s.GetNetwork().GetIp(); ip != "" && !b.HostNetwork {
		b.IPs = append(b.IPs, ip)
		for _, more := range s.GetNetwork().GetAdditionalIps() {
			b.IPs = append(b.IPs, more.GetIp())
		}
	}
	return b
}

// podOf names the pod a sandbox belongs to; ok is false for sandboxes that
// were not made by a node agent.
func podOf(labels map[string]string) (uid types.UID, namespace, name string, ok bool) {
	uid = types.UID(labels[kubelettypes.KubernetesPodUIDLabel])
	return uid, labels[kubelettypes.KubernetesPodNamespaceLabel], labels[kubelettypes.KubernetesPodNameLabel], uid != ""
}
