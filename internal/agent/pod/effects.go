package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/agent/runtime"
	"github.com/berth-dev/berth/internal/kube"
)

// stopFloor is the least a container gets to react to its stop signal.
const stopFloor = 2 * time.Second

// effect performs one action. It may be repeated after a crash at any point of
// it: everything it leaves behind is found again by its labels.
func (m *Manager) effect(ctx context.Context, w *worker, spec spec, a action) result {
	pod := spec.Pod
	var r result
	switch a.Kind {
	case Admit:
		adopted := !m.cfg.Runtime.Pod(pod.UID).Empty() || pod.Status.StartTime != nil && pod.Status.Phase == v1.PodRunning
		r.Rejected = m.cfg.Admitter.Admit(ctx, pod, adopted)
		if r.Rejected != nil {
			m.event(pod, event{Warning: true, Reason: r.Rejected.Reason, Message: r.Rejected.Message})
		}
	case Cgroup:
		r.Err = m.fail(pod, m.cfg.Cgroups.Ensure(pod), "FailedCreatePodContainer", "unable to ensure pod container exists: ")
	case Mount:
		// The volumes report their own failures, each once.
		r.Err = m.fail(pod, m.cfg.Volumes.Mount(ctx, pod), "", "")
	case CreateSandbox:
		r.Err = m.createSandbox(ctx, pod, a)
	case Pull:
		r.ImageRef, r.Err = m.pull(ctx, pod, a)
	case Start:
		r.ContainerID, r.Err = m.start(ctx, w, pod, a)
	case PostStart, PreStop:
		r.Err = m.hook(ctx, pod, a)
	case Stop:
		r.Err = m.stop(ctx, a)
	case Remove:
		r.Err = m.remove(ctx, a)
	case StopSandbox:
		err := m.cfg.Service.StopPodSandbox(ctx, a.ID)
		if runtime.IsNotFound(err) {
			err = nil
		}
		if r.Err = m.fail(pod, err, "FailedKillPod", "error killing pod: "); r.Err == nil {
			_, _ = m.cfg.Runtime.RefreshSandbox(ctx, a.ID)
		}
	case RemoveSandbox:
		r.Err = m.removeSandbox(ctx, pod, a)
	case Unmount:
		r.Err = m.fail(pod, m.cfg.Volumes.Unmount(ctx, pod.UID), "FailedUnMount", "")
	case RemoveCgroup:
		r.Err = m.fail(pod, m.cfg.Cgroups.Remove(pod.UID), "", "")
	case Clean:
		r.Err = m.fail(pod, m.clean(pod), "", "")
	case Delete:
		r.Err = m.fail(pod, m.deletePod(ctx, pod), "", "")
	case Allocate:
		r.Allocation, r.Err = m.allocate(ctx, spec)
	case Resize:
		if r.Err = m.actuate(ctx, pod); r.Err == nil {
			m.makeRoom()
		}
	default:
		r.Err = &actionFailure{Reason: "Unknown", Message: "no way to perform " + string(a.Kind)}
	}
	return r
}

// fail turns an error into a failure and, with a reason, a warning event.
func (m *Manager) fail(pod *v1.Pod, err error, reason, prefix string) *actionFailure {
	if err == nil {
		return nil
	}
	f := failure(err, reason)
	if !canceled(err) {
		m.cfg.Log.Warn("pod action failed", "pod", pod.Namespace+"/"+pod.Name, "reason", f.Reason, "err", err)
		if reason != "" {
			m.event(pod, event{Warning: true, Reason: reason, Message: prefix + f.Message})
		}
	}
	return f
}

// canceled: the call was canceled by its caller, which is no one's failure.
func canceled(err error) bool {
	return errors.Is(err, context.Canceled) || status.Code(err) == codes.Canceled
}

func (m *Manager) createSandbox(ctx context.Context, pod *v1.Pod, a action) *actionFailure {
	cfg, handler, err := m.cfg.Configs.Sandbox(ctx, pod, a.Attempt)
	if err == nil {
		err = os.MkdirAll(cfg.GetLogDirectory(), 0o755)
	}
	var e *Error
	if errors.As(err, &e) {
		return m.fail(pod, err, e.Reason, "")
	}
	if err != nil {
		return m.fail(pod, err, "FailedCreatePodSandBox", "Failed to create pod sandbox: ")
	}
	m.metrics.startedPods.Inc()
	began := m.cfg.Now()
	run, stop := outlast(ctx, m.cfg.SandboxPatience)
	defer stop()
	id, err := m.cfg.Service.RunPodSandbox(run, cfg, handler)
	m.metrics.sandboxes.WithLabelValues(handler).Observe(m.cfg.Now().Sub(began).Seconds())
	if err != nil {
		m.metrics.startedPodErrors.Inc()
	}
	if err == nil {
		_, err = m.cfg.Runtime.RefreshSandbox(run, id)
	}
	if err == nil {
		return nil
	}
	if down := m.networkDown(ctx, pod, err); down != "" {
		m.event(pod, event{Warning: true, Reason: "NetworkNotReady", Message: "network is not ready: " + down})
		f := failure(err, "NetworkNotReady")
		f.RetryAt = m.cfg.Now().Add(250 * time.Millisecond)
		return f
	}
	return m.fail(pod, err, "FailedCreatePodSandBox", "Failed to create pod sandbox: ")
}

// outlast returns a context that goes on for that long after the given one was
// given up, or a quarter of it after it ended otherwise; stop frees what it
// holds.
func outlast(ctx context.Context, patience time.Duration) (longer context.Context, stop func()) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	timer := make(chan *time.Timer, 1)
	undo := context.AfterFunc(ctx, func() {
		if !errors.Is(context.Cause(ctx), errUnwanted) {
			patience /= 4
		}
		timer <- time.AfterFunc(patience, cancel)
	})
	return longer, func() {
		if !undo() {
			(<-timer).Stop()
		}
		cancel()
	}
}

// networkDown tells why the runtime's network is not ready, or "".
func (m *Manager) networkDown(ctx context.Context, pod *v1.Pod, err error) string {
	if pod.Spec.HostNetwork || ctx.Err() != nil {
		return ""
	}
	st, serr := m.cfg.Service.Status(ctx, false)
	if serr != nil {
		return ""
	}
	for _, c := range st.GetStatus().GetConditions() {
		if c.GetType() == runtimeapi.NetworkReady && !c.GetStatus() {
			return fmt.Sprintf("container runtime network not ready: NetworkReady=false reason:%s message:%s", c.GetReason(),
				c.GetMessage())
		}
	}
	return ""
}

func (m *Manager) pull(ctx context.Context, pod *v1.Pod, a action) (string, *actionFailure) {
	c := containerOf(pod, a.Container)
	if c == nil {
		return "", &actionFailure{Reason: "InvalidImageName", Message: "no such container: " + a.Container}
	}
	ref, err := m.cfg.Images.Ensure(ctx, pod, c)
	if err != nil {
		return "", failure(err, "ErrImagePull")
	}
	return ref, nil
}

func containerOf(pod *v1.Pod, name string) *v1.Container {
	for _, m := range allContainers(pod, nil, nil) {
		if m.c.Name == name {
			return m.c
		}
	}
	return nil
}

// start creates and starts a container.
func (m *Manager) start(ctx context.Context, w *worker, pod *v1.Pod, a action) (string, *actionFailure) {
	m.metrics.startedContainers.WithLabelValues(containerType(pod, a.Container)).Inc()
	in, f := m.startInput(w, pod, a)
	if f != nil {
		return "", f
	}
	cfg, sandboxCfg, err := m.cfg.Configs.Container(ctx, in)
	if err != nil {
		return "", m.startFailed(ctx, pod, a, failure(err, "CreateContainerConfigError"))
	}
	if err := os.MkdirAll(filepath.Join(sandboxCfg.GetLogDirectory(), a.Container), 0o755); err != nil {
		return "", m.startFailed(ctx, pod, a, failure(err, "CreateContainerError"))
	}
	id, err := m.cfg.Service.CreateContainer(ctx, in.SandboxID, cfg, sandboxCfg)
	if err != nil {
		return "", m.startFailed(ctx, pod, a, &actionFailure{Reason: "CreateContainerError", Message: status.Convert(err).Message()})
	}
	m.event(pod, event{Reason: "Created", Message: "Container created", Container: a.Container})
	if err := m.cfg.Service.StartContainer(ctx, id); err != nil {
		_, _ = m.cfg.Runtime.RefreshContainer(ctx, in.SandboxID, id)
		return id, m.startFailed(ctx, pod, a, &actionFailure{Reason: "RunContainerError", Message: status.Convert(err).Message()})
	}
	if _, err := m.cfg.Runtime.RefreshContainer(ctx, in.SandboxID, id); err != nil && ctx.Err() == nil {
		m.cfg.Log.Warn("reading a container just started", "id", id, "err", err)
	}
	m.event(pod, event{Reason: "Started", Message: "Container started", Container: a.Container})
	m.link(pod, a.Container, id, filepath.Join(sandboxCfg.GetLogDirectory(), cfg.LogPath))
	return id, nil
}

func (m *Manager) startFailed(ctx context.Context, pod *v1.Pod, a action, f *actionFailure) *actionFailure {
	if ctx.Err() == nil {
		m.metrics.containerErrors.WithLabelValues(containerType(pod, a.Container), f.Reason).Inc()
		m.event(pod, event{Warning: true, Reason: "Failed", Message: "Error: " + f.Message, Container: a.Container})
		m.cfg.Log.Warn("starting a container", "pod", pod.Namespace+"/"+pod.Name, "container", a.Container, "reason", f.Reason, "err",
			f.Message)
	}
	return f
}

// startInput gathers what a container's configuration depends on.
func (m *Manager) startInput(w *worker, pod *v1.Pod, a action) (StartInput, *actionFailure) {
	in := StartInput{Pod: pod, Attempt: a.Attempt, ImageRef: a.image}
	held := m.cfg.Runtime.Pod(pod.UID)
	sandbox := currentSandbox(pod, held)
	if sandbox == nil {
		return in, &actionFailure{Reason: "CreateContainerError", Message: "the pod's sandbox is gone"}
	}
	in.SandboxID, in.PodIPs = sandbox.ID, sandbox.IPs
	if pod.Spec.HostNetwork {
		in.PodIPs = m.cfg.Node().IPs
	}
	var target string
	for _, mem := range allContainers(pod, held, sandbox) {
		if mem.c.Name == a.Container {
			in.Container, target = mem.c, mem.target
		}
	}
	if in.Container == nil {
		return in, &actionFailure{Reason: "CreateContainerConfigError", Message: "the pod has no container " + a.Container}
	}
	if target != "" {
		c := held.Newest(target)
		if !alive(c) {
			return in, m.startFailed(context.Background(), pod, a, &actionFailure{Reason: "CreateContainerConfigError",
				Message: "unable to find target container " + target})
		}
		in.TargetID = c.ID
	}
	return in, nil
}

// link makes the log findable by the name that log shippers look for.
func (m *Manager) link(pod *v1.Pod, container, id, path string) {
	if m.cfg.Dirs.Links == "" {
		return
	}
	name := fmt.Sprintf("%s_%s_%s-%s", pod.Name, pod.Namespace, container, id)
	if len(name) > 251 {
		name = name[:251]
	}
	if err := os.Symlink(path, filepath.Join(m.cfg.Dirs.Links, name+".log")); err != nil && !errors.Is(err, os.ErrExist) {
		m.cfg.Log.Warn("linking a container log", "err", err)
	}
}

func (m *Manager) hook(ctx context.Context, pod *v1.Pod, a action) *actionFailure {
	c := containerOf(pod, a.Container)
	if c == nil || c.Lifecycle == nil {
		return nil
	}
	h, reason, text := c.Lifecycle.PostStart, "FailedPostStartHook", "PostStartHook failed"
	if a.Kind == PreStop {
		h, reason, text = c.Lifecycle.PreStop, "FailedPreStopHook", "PreStopHook failed"
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, a.Deadline)
		defer cancel()
	}
	if h == nil {
		return nil
	}
	err := m.cfg.Hooks.Run(ctx, Hook{Pod: pod, Container: c, ContainerID: a.ID, PodIP: m.podIP(pod), Handler: h})
	if err == nil {
		return nil
	}
	if !errors.Is(ctx.Err(), context.Canceled) {
		m.event(pod, event{Warning: true, Reason: reason, Message: text, Container: a.Container})
	}
	f := failure(err, "PostStartHookError")
	return f
}

func (m *Manager) podIP(pod *v1.Pod) string {
	if b := currentSandbox(pod, m.cfg.Runtime.Pod(pod.UID)); b != nil && len(b.IPs) > 0 {
		return b.IPs[0]
	}
	if ips := m.cfg.Node().IPs; len(ips) > 0 {
		return ips[0]
	}
	return ""
}

func (m *Manager) stop(ctx context.Context, a action) *actionFailure {
	left := max(a.Deadline.Sub(m.cfg.Now()), stopFloor)
	if a.Now {
		left = 0
	}
	err := m.cfg.Service.StopContainer(ctx, a.ID, int64((left+time.Second-1)/time.Second))
	if err != nil && !runtime.IsNotFound(err) {
		return failure(err, "KillContainerError")
	}
	if _, err := m.cfg.Runtime.RefreshContainer(ctx, "", a.ID); err != nil {
		return failure(err, "KillContainerError")
	}
	return nil
}

func (m *Manager) remove(ctx context.Context, a action) *actionFailure {
	st, err := m.cfg.Service.ContainerStatus(ctx, a.ID, false)
	if err == nil {
		err = m.cfg.Service.RemoveContainer(ctx, a.ID)
	}
	if err != nil && !runtime.IsNotFound(err) {
		return failure(err, "RemoveContainerError")
	}
	m.cfg.Runtime.Remove(a.ID)
	if path := st.GetStatus().GetLogPath(); path != "" && !a.KeepLogs {
		if err := removeLogs(path); err != nil {
			m.cfg.Log.Warn("removing a container's log", "err", err)
		}
	}
	m.dropLinks(a.ID)
	return nil
}

// dropLinks removes the log links of a container.
func (m *Manager) dropLinks(id string) {
	if m.cfg.Dirs.Links == "" {
		return
	}
	found, _ := filepath.Glob(filepath.Join(m.cfg.Dirs.Links, "*-"+id+".log"))
	for _, path := range found {
		_ = os.Remove(path)
	}
}

func (m *Manager) removeSandbox(ctx context.Context, pod *v1.Pod, a action) *actionFailure {
	if err := m.cfg.Service.RemovePodSandbox(ctx, a.ID); err != nil && !runtime.IsNotFound(err) {
		return failure(err, "RemovePodSandboxError")
	}
	if held := m.cfg.Runtime.Pod(pod.UID); held != nil {
		for _, c := range held.Containers {
			if c.SandboxID == a.ID {
				m.cfg.Runtime.Remove(c.ID)
				m.dropLinks(c.ID)
			}
		}
	}
	m.cfg.Runtime.Remove(a.ID)
	return nil
}

// deletePod removes the finished pod from the API; that it is gone already, or
// that another pod has its name, is what was wanted.
func (m *Manager) deletePod(ctx context.Context, pod *v1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	now := int64(0)
	err := m.cfg.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now, Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
	})
	if err == nil || kube.Gone(err) {
		return nil
	}
	return fmt.Errorf("deleting pod %s/%s: %w", pod.Namespace, pod.Name, err)
}
