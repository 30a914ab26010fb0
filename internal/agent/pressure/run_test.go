package pressure

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metatypes "k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/internal/agent/node"
)

// host is a /proc whose memory is eaten by a hog.
type host struct {
	t    *testing.T
	root string
}

func (m *host) setFree(bytes int64) {
	m.t.Helper()
	text := fmt.Sprintf("MemTotal: %d kB\nMemFree: %d kB\nInactive(file): 0 kB\n", 4<<20, bytes/1024)
	path := filepath.Join(m.root, "proc/meminfo")
	if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		m.t.Fatal(err)
	}
}

func newHost(t *testing.T) *host {
	m := &host{t: t, root: t.TempDir()}
	for name, text := range map[string]string{"loadavg": "0 0 0 1/100 5\n", "sys/kernel/pid_max": "32768\n",
		"sys/kernel/threads-max": "32768\n"} {
		path := filepath.Join(m.root, "proc", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m.setFree(4 << 30)
	return m
}

type status struct {
	mu   sync.Mutex
	last node.Pressure
}

func (b *status) SetPressure(p node.Pressure) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = p
}

// TestHogIsEndedWithinASecond lets a pod allocate 50 MiB/s, and wants it ended
// within a second of crossing the threshold, and its neighbour spared.
func TestHogIsEndedWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, shown := newHost(t), &status{}
		pod := func(name string) *v1.Pod {
			return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: metatypes.UID(name)},
				Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c",
					Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceMemory: resource.MustParse("100Mi")}}}}}}
		}
		hog, neighbour := pod("hog"), pod("neighbour")
		killed := make(chan struct {
			pod *v1.Pod
			at  time.Time
		}, 10)
		over := make(chan struct{})
		const rate, threshold = 50 << 20, 100 << 20
		var mu sync.Mutex
		used := int64(0)
		cfg := Config{
			Log: slog.New(slog.DiscardHandler), NodeName: "n1", Status: shown, Events: record.NewFakeRecorder(100),
			StallFile: filepath.Join(m.root, "none"), KernelLog: filepath.Join(m.root, "none"),
			Kubelet: &kubeletv1beta1.KubeletConfiguration{EvictionHard: map[string]string{"memory.available": "100Mi"},
				EvictionPressureTransitionPeriod: metav1.Duration{Duration: time.Minute}},
			Pods: func() []*v1.Pod { return []*v1.Pod{neighbour, hog} },
			Usage: func(context.Context, []*v1.Pod, bool) ([]PodUsage, error) {
				mu.Lock()
				defer mu.Unlock()
				return []PodUsage{{Pod: neighbour, Measured: true, Memory: 90 << 20}, {Pod: hog, Measured: true, Memory: used}}, nil
			},
			Kill: func(pod *v1.Pod, _ Eviction) <-chan struct{} {
				killed <- struct {
					pod *v1.Pod
					at  time.Time
				}{pod, time.Now()}
				return over
			},
			ForceKill: func(*v1.Pod) {},
			Sensor:    &Sensor{HostRoot: m.root, RootDir: m.root},
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- Run(ctx, cfg) }()
		defer func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		var crossed time.Time
		for free := int64(4 << 30); len(killed) == 0; {
			time.Sleep(20 * time.Millisecond)
			free -= rate / 50
			if free < 0 {
				t.Fatal("the hog was never ended")
			}
			mu.Lock()
			used += rate / 50
			mu.Unlock()
			m.setFree(free)
			if crossed.IsZero() && free < threshold {
				crossed = time.Now()
			}
		}
		victim := <-killed
		if victim.pod != hog || victim.at.Sub(crossed) > time.Second {
			t.Errorf("ended %s %v after crossing", victim.pod.Name, victim.at.Sub(crossed))
		}
		t.Logf("reaction: %v", victim.at.Sub(crossed))
		m.setFree(3 << 30)
		close(over)
		time.Sleep(30 * time.Second)
		if shown.mu.Lock(); !shown.last.Memory {
			t.Error("the condition went before its transition period")
		}
		shown.mu.Unlock()
		time.Sleep(time.Minute)
		if shown.mu.Lock(); shown.last.Memory {
			t.Error("the condition stays")
		}
		shown.mu.Unlock()
		if len(killed) != 0 {
			t.Errorf("%d more pods were ended", len(killed))
		}
	})
}

// store is a runtime with containers, sandboxes and images to collect.
type store struct {
	mount      string
	containers []*runtimeapi.Container
	sandboxes  []*runtimeapi.PodSandbox
	images     []*runtimeapi.Image
	removed    []string
}

func (s *store) ListContainers(context.Context, *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	return s.containers, nil
}
func (s *store) RemoveContainer(_ context.Context, id string) error { return s.drop("container " + id) }
func (s *store) ListPodSandbox(context.Context, *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	return s.sandboxes, nil
}
func (s *store) StopPodSandbox(context.Context, string) error        { return nil }
func (s *store) RemovePodSandbox(_ context.Context, id string) error { return s.drop("sandbox " + id) }
func (s *store) ListImages(context.Context, *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	return s.images, nil
}
func (s *store) RemoveImage(_ context.Context, spec *runtimeapi.ImageSpec) error {
	return s.drop("image " + spec.Image)
}
func (s *store) ImageFsInfo(context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{
		{FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: s.mount}}}}, nil
}
func (s *store) drop(what string) error {
	s.removed = append(s.removed, what)
	return nil
}

func TestReclaimTakesOnlyWhatIsUnused(t *testing.T) {
	dir := t.TempDir()
	exited, running := runtimeapi.ContainerState_CONTAINER_EXITED, runtimeapi.ContainerState_CONTAINER_RUNNING
	container := func(id, uid, name, image string, state runtimeapi.ContainerState, created int64) *runtimeapi.Container {
		return &runtimeapi.Container{Id: id, PodSandboxId: "s-" + uid, State: state, CreatedAt: created, ImageRef: image,
			Image:  &runtimeapi.ImageSpec{Image: image},
			Labels: map[string]string{labelPodUID: uid, labelContainerName: name}}
	}
	sandbox := func(uid string, state runtimeapi.PodSandboxState) *runtimeapi.PodSandbox {
		return &runtimeapi.PodSandbox{Id: "s-" + uid, State: state, Metadata: &runtimeapi.PodSandboxMetadata{Uid: uid},
			Labels: map[string]string{labelPodUID: uid}}
	}
	s := &store{mount: dir,
		containers: []*runtimeapi.Container{
			container("run", "live", "a", "sha-used", running, 3), container("dead1", "live", "a", "sha-used", exited, 1),
			container("dead2", "live", "a", "sha-used", exited, 2),
			container("done", "over", "a", "sha-done", exited, 1), container("lost", "gone", "a", "sha-lost", exited, 1),
			{Id: "foreign", State: exited},
		},
		sandboxes: []*runtimeapi.PodSandbox{sandbox("live", runtimeapi.PodSandboxState_SANDBOX_READY),
			sandbox("gone", runtimeapi.PodSandboxState_SANDBOX_NOTREADY)},
		images: []*runtimeapi.Image{{Id: "sha-used"}, {Id: "sha-pinned", Pinned: true}, {Id: "sha-idle", Size: 5},
			{Id: "sha-spec", RepoTags: []string{"docker.io/library/wanted:latest"}}, {Id: "sha-done"}},
	}
	pods := []*v1.Pod{
		{ObjectMeta: metav1.ObjectMeta{UID: "live"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "a", Image: "wanted"}}}},
		{ObjectMeta: metav1.ObjectMeta{UID: "over"}, Status: v1.PodStatus{Phase: v1.PodFailed}},
	}
	logs := filepath.Join(dir, "logs")
	for _, name := range []string{"ns_p_live", "ns_p_gone", "other"} {
		if err := os.MkdirAll(filepath.Join(logs, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	ready := false
	c, err := NewCollector(t.Context(), CollectorConfig{Log: slog.New(slog.DiscardHandler), NodeName: "n1", Runtime: s, Images: s,
		Events: record.NewFakeRecorder(10),
		Pods:   func() []*v1.Pod { return pods }, SourcesReady: func() bool { return ready }, RootDir: dir, LogsDir: logs})
	if err != nil {
		t.Fatal(err)
	}
	c.Reclaim(t.Context(), true, false)
	if len(s.removed) != 0 {
		t.Errorf("before the pods are known it removed %v", s.removed)
	}
	ready = true
	c.Reclaim(t.Context(), true, true)
	got := map[string]bool{}
	for _, what := range s.removed {
		got[what] = true
	}
	want := []string{"container dead1", "container done", "container lost", "sandbox s-gone", "image sha-idle"}
	for _, what := range want {
		if !got[what] {
			t.Errorf("%s stays", what)
		}
	}
	if len(got) != len(want) {
		t.Errorf("removed %v, want %v", s.removed, want)
	}
	if c.Dedicated() {
		t.Error("a directory on the same disk counts as dedicated")
	}
	entries, err := os.ReadDir(logs)
	if err != nil || len(entries) != 2 {
		t.Errorf("log directories: %v, %v", entries, err)
	}
}
