// Package contract says what the agent relies on in a container runtime. Every
// runtime, fake or real, runs the same suite.
package contract

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"

	"github.com/berth-dev/berth/internal/agent/runtime"
)

// subject is a runtime under test.
type subject struct {
	Service runtime.Service
	Images  runtime.ImageService
	// Image is present and has a shell that knows sleep and exit.
	Image string
	// Host makes sandboxes on the node's network, for hosts without CNI.
	Host bool
}

// patience bounds waits for events. It is never a pass criterion: what is
// waited for must come, this only ends a test that would hang.
const patience = 60 * time.Second

type run struct {
	*testing.T
	subject
	ctx context.Context
	uid string
	dir string
}

// runSuite runs the suite. Everything it makes it also removes.
func runSuite(t *testing.T, s subject) {
	tests := []struct {
		name string
		f    func(*run)
	}{
		{"sandbox", (*run).sandbox},
		{"container", (*run).container},
		{"exit code", (*run).exitCode},
		{"stop is patient", (*run).stopIsPatient},
		{"sandbox takes its containers along", (*run).sandboxEnds},
		{"what is gone is not found", (*run).notFound},
		{"exec", (*run).exec},
		{"events feed the cache", (*run).events},
		{"relist finds everything", (*run).relist},
	}
	for i, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
			defer cancel()
			dir := t.TempDir()
			tc.f(&run{T: t, subject: s, ctx: ctx, uid: fmt.Sprintf("contract-%d-%d", os.Getpid(), i), dir: dir})
		})
	}
}

func (r *run) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *run) sandboxConfig(attempt uint32) *runtimeapi.PodSandboxConfig {
	ns := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}
	if r.Host {
		ns.Network = runtimeapi.NamespaceMode_NODE
	}
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "pod", Namespace: "contract", Uid: r.uid, Attempt: attempt},
		LogDirectory: r.dir,
		Labels: map[string]string{
			kubelettypes.KubernetesPodNameLabel: "pod", kubelettypes.KubernetesPodNamespaceLabel: "contract",
			kubelettypes.KubernetesPodUIDLabel: r.uid,
		},
		Annotations: map[string]string{"contract.example/kept": "yes"},
		Linux:       &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: ns}},
	}
}

func (r *run) newSandbox() string {
	r.Helper()
	id, err := r.Service.RunPodSandbox(r.ctx, r.sandboxConfig(0), "")
	r.must(err)
	r.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = r.Service.StopPodSandbox(ctx, id)
		_ = r.Service.RemovePodSandbox(ctx, id)
	})
	return id
}

// newContainer creates a container that runs a shell script.
func (r *run) newContainer(sandbox, name, script string, attempt uint32) string {
	r.Helper()
	r.must(os.MkdirAll(filepath.Join(r.dir, name), 0o755))
	ns := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}
	if r.Host {
		ns.Network = runtimeapi.NamespaceMode_NODE
	}
	id, err := r.Service.CreateContainer(r.ctx, sandbox, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name, Attempt: attempt},
		// CRI-O checks signatures by the name in the pod's spec and refuses to
		// do without.
		Image:   &runtimeapi.ImageSpec{Image: r.Image, UserSpecifiedImage: r.Image},
		Command: []string{"/bin/sh", "-c", script},
		LogPath: fmt.Sprintf("%s/%d.log", name, attempt),
		Labels: map[string]string{
			kubelettypes.KubernetesPodNameLabel: "pod", kubelettypes.KubernetesPodNamespaceLabel: "contract",
			kubelettypes.KubernetesPodUIDLabel: r.uid, kubelettypes.KubernetesContainerNameLabel: name,
		},
		Annotations: map[string]string{runtime.AnnotationHash: "h", runtime.AnnotationRestartCount: fmt.Sprint(attempt)},
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources:       &runtimeapi.LinuxContainerResources{OomScoreAdj: 1000},
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: ns},
		},
	}, r.sandboxConfig(0))
	r.must(err)
	return id
}

func (r *run) status(id string) *runtimeapi.ContainerStatus {
	r.Helper()
	st, err := r.Service.ContainerStatus(r.ctx, id, false)
	r.must(err)
	return st.GetStatus()
}

func (r *run) wantState(id string, want runtimeapi.ContainerState) *runtimeapi.ContainerStatus {
	r.Helper()
	st := r.status(id)
	if st.GetState() != want {
		r.Fatalf("container is %v, want %v", st.GetState(), want)
	}
	return st
}

func (r *run) sandbox() {
	id := r.newSandbox()
	st, err := r.Service.PodSandboxStatus(r.ctx, id, false)
	r.must(err)
	b := st.GetStatus()
	if b.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY {
		r.Fatalf("a new sandbox is %v", b.GetState())
	}
	if !r.Host && b.GetNetwork().GetIp() == "" {
		r.Error("a sandbox on the pod network has no address")
	}
	if b.GetLabels()[kubelettypes.KubernetesPodUIDLabel] != r.uid || b.GetAnnotations()["contract.example/kept"] != "yes" ||
		b.GetCreatedAt() == 0 {
		r.Errorf("labels, annotations or time of creation are lost: %v", b)
	}
	// containerd refuses, CRI-O answers with the one that is there.
	if again, err := r.Service.RunPodSandbox(r.ctx, r.sandboxConfig(0), ""); err == nil && again != id {
		r.Error("a second sandbox of the same pod and attempt was made")
	}
	for range 2 { // twice: it may be repeated after a crash
		r.must(r.Service.StopPodSandbox(r.ctx, id))
	}
	st, err = r.Service.PodSandboxStatus(r.ctx, id, false)
	r.must(err)
	if st.GetStatus().GetState() != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
		r.Errorf("a stopped sandbox is %v", st.GetStatus().GetState())
	}
	for range 2 {
		r.must(r.Service.RemovePodSandbox(r.ctx, id))
	}
}

func (r *run) container() {
	sandbox := r.newSandbox()
	id := r.newContainer(sandbox, "app", "sleep 3600", 3)
	st := r.wantState(id, runtimeapi.ContainerState_CONTAINER_CREATED)
	if st.GetMetadata().GetAttempt() != 3 || st.GetAnnotations()[runtime.AnnotationHash] != "h" || st.GetLogPath() != filepath.Join(r.dir,
		"app/3.log") {
		r.Errorf("attempt, annotations or log path are lost: %v", st)
	}
	r.must(r.Service.StartContainer(r.ctx, id))
	if r.wantState(id, runtimeapi.ContainerState_CONTAINER_RUNNING).GetStartedAt() == 0 {
		r.Error("a running container does not tell when it started")
	}
	if r.Service.StartContainer(r.ctx, id) == nil {
		r.Error("a running container was started again")
	}
	for range 2 {
		r.must(r.Service.StopContainer(r.ctx, id, 1))
	}
	st = r.wantState(id, runtimeapi.ContainerState_CONTAINER_EXITED)
	if st.GetFinishedAt() < st.GetStartedAt() || st.GetExitCode() == 0 {
		r.Errorf("a container that was stopped ended at %d with %d", st.GetFinishedAt(), st.GetExitCode())
	}
	for range 2 {
		r.must(r.Service.RemoveContainer(r.ctx, id))
	}
}

// exited waits for a container's end on the event stream.
func (r *run) exited(id string, start func()) *runtimeapi.ContainerStatus {
	r.Helper()
	w, stop := r.watch()
	defer stop()
	start()
	for {
		changed := w.Changed()
		if _, err := w.RefreshContainer(r.ctx, "", id); err != nil {
			r.Fatal(err)
		}
		if st := r.status(id); st.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED {
			return st
		}
		select {
		case <-changed:
		case <-time.After(patience):
			r.Fatal("the container does not end")
		}
	}
}

func (r *run) exitCode() {
	sandbox := r.newSandbox()
	for _, code := range []int32{0, 3} {
		id := r.newContainer(sandbox, "app", fmt.Sprintf("exit %d", code), uint32(code))
		st := r.exited(id, func() { r.must(r.Service.StartContainer(r.ctx, id)) })
		want := map[int32]string{0: "Completed", 3: "Error"}[code]
		if st.GetExitCode() != code || st.GetReason() != want {
			r.Errorf("exit %d is reported as %d %q, want %q", code, st.GetExitCode(), st.GetReason(), want)
		}
	}
}

func (r *run) stopIsPatient() {
	sandbox := r.newSandbox()
	id := r.newContainer(sandbox, "stubborn", "trap '' TERM; while true; do sleep 0.05; done", 0)
	r.must(r.Service.StartContainer(r.ctx, id))
	ctx, cancel := context.WithCancel(r.ctx)
	ended := make(chan error, 1)
	go func() { ended <- r.Service.StopContainer(ctx, id, 3600) }()
	cancel() // giving up a stop must not hang, and a new one may be shorter
	<-ended
	r.must(r.Service.StopContainer(r.ctx, id, 1))
	r.wantState(id, runtimeapi.ContainerState_CONTAINER_EXITED)
}

func (r *run) sandboxEnds() {
	sandbox := r.newSandbox()
	id := r.newContainer(sandbox, "app", "sleep 3600", 0)
	r.must(r.Service.StartContainer(r.ctx, id))
	r.must(r.Service.StopPodSandbox(r.ctx, sandbox))
	r.wantState(id, runtimeapi.ContainerState_CONTAINER_EXITED)
	r.must(r.Service.RemovePodSandbox(r.ctx, sandbox))
	if _, err := r.Service.ContainerStatus(r.ctx, id, false); !runtime.IsNotFound(err) {
		r.Errorf("a container whose sandbox was removed answers %v", err)
	}
}

func (r *run) notFound() {
	if _, err := r.Service.ContainerStatus(r.ctx, "no-such-container", false); !runtime.IsNotFound(err) {
		r.Errorf("status of no container: %v", err)
	}
	if _, err := r.Service.PodSandboxStatus(r.ctx, "no-such-sandbox", false); !runtime.IsNotFound(err) {
		r.Errorf("status of no sandbox: %v", err)
	}
	r.must(r.Service.RemoveContainer(r.ctx, "no-such-container"))
	r.must(r.Service.RemovePodSandbox(r.ctx, "no-such-sandbox"))
}

func (r *run) exec() {
	sandbox := r.newSandbox()
	id := r.newContainer(sandbox, "app", "sleep 3600", 0)
	r.must(r.Service.StartContainer(r.ctx, id))
	if _, _, err := r.Service.ExecSync(r.ctx, id, []string{"/bin/sh", "-c", "exit 0"}, 10*time.Second); err != nil {
		r.Errorf("exec of exit 0: %v", err)
	}
	r.must(r.Service.StopContainer(r.ctx, id, 0))
	if _, _, err := r.Service.ExecSync(r.ctx, id, []string{"/bin/sh", "-c", "exit 0"}, 10*time.Second); err == nil {
		r.Error("a command ran in a container that has ended")
	}
}

// watch runs a watcher until stop is called.
func (r *run) watch() (w *runtime.Watcher, stop func()) {
	ctx, cancel := context.WithCancel(r.ctx)
	w = runtime.NewWatcher(runtime.WatcherConfig{Service: r.Service, Notify: func(types.UID) {}, Log: slog.New(slog.DiscardHandler)})
	done := make(chan struct{})
	go func() { defer close(done); _ = w.Run(ctx) }()
	<-w.Synced()
	return w, func() { cancel(); <-done }
}

// events: nothing but the event stream tells the cache of a whole life.
func (r *run) events() {
	w, stop := r.watch()
	defer stop()
	r.must(w.Streaming(r.ctx))
	sandbox := r.newSandbox()
	until := func(what string, ok func(p *runtime.Pod) bool) {
		r.Helper()
		for {
			changed := w.Changed()
			if ok(w.Pod(types.UID(r.uid))) {
				return
			}
			select {
			case <-changed:
			case <-time.After(patience):
				r.Fatalf("no event told of %s", what)
			}
		}
	}
	is := func(state runtime.State) func(*runtime.Pod) bool {
		return func(p *runtime.Pod) bool {
			c := p.Newest("app")
			return c != nil && c.State == state && c.SandboxID == sandbox
		}
	}
	until("the sandbox", func(p *runtime.Pod) bool { return !p.Empty() && p.Sandboxes[0].Ready })
	id := r.newContainer(sandbox, "app", "sleep 3600", 0)
	until("the container", is(runtime.Created))
	r.must(r.Service.StartContainer(r.ctx, id))
	until("its start", is(runtime.Running))
	r.must(r.Service.StopContainer(r.ctx, id, 1))
	until("its end", is(runtime.Exited))
	r.must(r.Service.RemoveContainer(r.ctx, id))
	until("its removal", func(p *runtime.Pod) bool { return p.Newest("app") == nil })
	r.must(r.Service.StopPodSandbox(r.ctx, sandbox))
	until("the sandbox's end", func(p *runtime.Pod) bool { return !p.Sandboxes[0].Ready })
	r.must(r.Service.RemovePodSandbox(r.ctx, sandbox))
	// CRI-O (1.34) sends nothing here: who removes a sandbox looks for himself.
	if _, err := w.RefreshSandbox(r.ctx, sandbox); err != nil {
		r.Fatal(err)
	}
	until("the sandbox's removal", func(p *runtime.Pod) bool { return p == nil })
}

// relist: without a single event the picture is the same.
func (r *run) relist() {
	w := runtime.NewWatcher(runtime.WatcherConfig{Service: r.Service, Notify: func(types.UID) {}, Log: slog.New(slog.DiscardHandler)})
	look := func() *runtime.Pod {
		r.Helper()
		r.must(w.Relist(r.ctx))
		return w.Pod(types.UID(r.uid))
	}
	sandbox := r.newSandbox()
	first := r.newContainer(sandbox, "app", "sleep 3600", 0)
	r.must(r.Service.StartContainer(r.ctx, first))
	if p := look(); p.Empty() || p.Newest("app").State != runtime.Running {
		r.Fatalf("a running container is not found: %+v", p)
	}
	r.must(r.Service.StopContainer(r.ctx, first, 1))
	second := r.newContainer(sandbox, "app", "sleep 3600", 1)
	p := look()
	ids := []string{p.Containers[0].ID, p.Containers[1].ID}
	if !slices.Equal(ids, []string{second, first}) || p.Containers[1].State != runtime.Exited {
		r.Fatalf("containers are not newest first: %v", ids)
	}
	r.must(r.Service.RemoveContainer(r.ctx, first))
	r.must(r.Service.StopPodSandbox(r.ctx, sandbox))
	if p := look(); len(p.Containers) != 1 || p.Sandboxes[0].Ready {
		r.Fatalf("removal and stop are not found: %+v", p)
	}
	r.must(r.Service.RemovePodSandbox(r.ctx, sandbox))
	if p := look(); p != nil {
		r.Fatalf("a removed sandbox is still there: %+v", p)
	}
}
