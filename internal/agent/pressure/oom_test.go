package pressure

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

func TestSystemVictim(t *testing.T) {
	for _, c := range []struct {
		record string
		want   victim
		ok     bool
	}{
		{"3,1203,99887766,-;Out of memory: Killed process 4211 (stress) total-vm:812340kB, anon-rss:790000kB, file-rss:0kB, " +
			"shmem-rss:0kB, UID:0 pgtables:1600kB oom_score_adj:0", victim{4211, "stress"}, true},
		{"3,7,5,-,caller=T17;Out of memory: Killed process 17 (a) b) total-vm:1kB", victim{17, "a) b"}, true},
		{"3,1203,99887766,-;Out of memory: Kill process 99 (my app) score 912 or sacrifice child", victim{99, "my app"}, true},
		{"3,8,1,-;Out of memory (oom_kill_allocating_task): Killed process 5 (java) total-vm:1kB", victim{5, "java"}, true},
		{"3,1204,99887767,-;Memory cgroup out of memory: Killed process 4212 (stress) total-vm:812340kB", victim{}, false},
		{"6,1202,99887765,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/," +
			"task=stress,pid=4211,uid=0", victim{}, false},
		{"12,1205,1,-;Out of memory: Killed process 1 (forged) total-vm:1kB", victim{}, false}, // facility 1: a program wrote it
		{" SUBSYSTEM=memory", victim{}, false},
		{"Out of memory: Killed process 1 (bare) ", victim{}, false},
		{"3,1,1,-;Out of memory: Killed process 99999999999999999999 (x) ", victim{}, false},
		{"", victim{}, false},
	} {
		got, ok := systemVictim([]byte(c.record))
		if ok != c.ok || ok && got != c.want {
			t.Errorf("%q: %+v %v, want %+v %v", c.record, got, ok, c.want, c.ok)
		}
	}
}

// TestSystemOOM runs the guard on a log of its own and wants an event of a
// victim, and none of what a cgroup's limit did.
func TestSystemOOM(t *testing.T) {
	log := filepath.Join(t.TempDir(), "kmsg")
	if err := unix.Mkfifo(log, 0o600); err != nil {
		t.Fatal(err)
	}
	writer, err := os.OpenFile(log, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	events := record.NewFakeRecorder(10)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, Config{Log: slog.New(slog.DiscardHandler), NodeName: "n1", Kubelet: &kubeletv1beta1.KubeletConfiguration{},
			Status: &status{}, Pods: func() []*v1.Pod { return nil },
			Usage: func(context.Context, []*v1.Pod, bool) ([]PodUsage, error) { return nil, nil },
			Kill:  func(*v1.Pod, Eviction) <-chan struct{} { return nil }, ForceKill: func(*v1.Pod) {},
			Events: events, Sensor: &Sensor{HostRoot: newHost(t).root, RootDir: t.TempDir()}, KernelLog: log,
			StallFile: filepath.Join(t.TempDir(), "none")})
	}()
	if _, err := writer.WriteString("3,1,1,-;Memory cgroup out of memory: Killed process 7 (pod) total-vm:1kB\n3,2,2,-;Out of memory: " +
		"Killed process 8 (stress) total-vm:1kB\n SUBSYSTEM=x\n"); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-events.Events:
		if got != "Warning SystemOOM System OOM encountered, victim process: stress, pid: 8" {
			t.Errorf("event %q", got)
		}
	case <-time.After(time.Minute):
		t.Error("no event")
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if len(events.Events) != 0 {
		t.Errorf("one more event: %s", <-events.Events)
	}
}

func TestKernelLogThatCannotBeRead(t *testing.T) {
	err := watchKernelLog(t.Context(), filepath.Join(t.TempDir(), "none"), nil)
	if err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("a log that is not there: %v", err)
	}
}

// TestDiskWithoutSize collects images on a file system that has no blocks.
func TestDiskWithoutSize(t *testing.T) {
	events := record.NewFakeRecorder(10)
	s := &store{mount: "/proc", images: []*runtimeapi.Image{{Id: "sha-idle", Size: 5}}}
	c, err := NewCollector(t.Context(), CollectorConfig{Log: slog.New(slog.DiscardHandler), NodeName: "n1", Runtime: s, Images: s,
		Events: events,
		Pods:   func() []*v1.Pod { return nil }, SourcesReady: func() bool { return true }, RootDir: t.TempDir(), HighPercent: 85,
		LowPercent: 80})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range [][]string{{"InvalidDiskCapacity invalid capacity 0 on image filesystem"},
		{"InvalidDiskCapacity invalid capacity 0 on image filesystem", "ImageGCFailed invalid capacity 0 on image filesystem: /proc"}} {
		c.collectImages(t.Context())
		var got []string
		for len(events.Events) > 0 {
			got = append(got, strings.TrimPrefix(<-events.Events, "Warning "))
		}
		if !slices.Equal(got, want) {
			t.Errorf("events %q, want %q", got, want)
		}
	}
	if len(s.removed) > 0 {
		t.Errorf("removed %v", s.removed)
	}
}
