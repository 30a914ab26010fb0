package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/cluster/containerd"
)

// floor starts pods with the very calls an agent made for one, and nobody
// between: no agent can be faster with the same runtime. What an agent makes
// beforehand (directories, files, the pod's cgroup) is there when the clock
// starts.
type floor struct {
	conn *grpc.ClientConn
	rt   runtimeapi.RuntimeServiceClient
	dir  string // where the files of pods are

	// Of the recorded pod.
	uid, name, root   string
	sandbox, creation string // requests as JSON
	sandboxID         string
	files             string // a copy of the pod's directory
	cgroups           []string
}

// label is what an agent finds its pods by. Pods of the floor have another one
// of the same length, or the agent beside would clear them away as orphans.
const label, strange = "io.kubernetes.pod.uid", "io.kubernetes.pod.uix"

func dialFloor(socket, dir string) (*floor, error) {
	conn, err := containerd.Dial(socket)
	if err != nil {
		return nil, err
	}
	return &floor{conn: conn, rt: runtimeapi.NewRuntimeServiceClient(conn), dir: dir}, os.MkdirAll(dir, 0o755)
}

// learn has an agent start one pod through a recorder.
func (b *bench) learn(ctx context.Context) error {
	f := b.floor
	socket := filepath.Join(b.Dir, "rec.sock")
	rec, err := record(socket, f.conn)
	if err != nil {
		return err
	}
	defer rec.server.Stop()
	agent, err := b.StartAgent(nodeName, anyDisk, "--container-runtime-endpoint", "unix://"+socket)
	if err != nil {
		return err
	}
	defer agent.Stop()
	if err := b.WaitNode(ctx, nodeName); err != nil {
		return err
	}
	if _, _, err := b.create(ctx, "recorded-", 1, false); err != nil {
		return err
	}
	p, err := b.Client.CoreV1().Pods("default").Get(ctx, "recorded-0", metav1.GetOptions{})
	if err != nil {
		return err
	}
	rec.mu.Lock()
	seen := rec.seen
	rec.mu.Unlock()
	if err := f.remember(seen, p, agent.RootDir); err != nil {
		return err
	}
	return b.empty(ctx)
}

// remember makes the recorded requests a template.
func (f *floor) remember(seen started, p *v1.Pod, root string) error {
	f.uid, f.name, f.root, f.sandboxID = string(p.UID), p.Name, root, seen.container.GetPodSandboxId()
	f.files = filepath.Join(f.dir, "template")
	if err := os.CopyFS(f.files, os.DirFS(filepath.Join(root, "pods", f.uid))); err != nil {
		return fmt.Errorf("keeping the files of the recorded pod: %w", err)
	}
	parent := seen.sandbox.GetConfig().GetLinux().GetCgroupParent()
	var err error
	for _, pattern := range []string{"/sys/fs/cgroup" + parent, "/sys/fs/cgroup/*" + parent} {
		var found []string
		found, err = filepath.Glob(pattern)
		f.cgroups = append(f.cgroups, found...)
	}
	if err != nil || len(f.cgroups) == 0 {
		return fmt.Errorf("looking for the cgroup %s of the recorded pod: %d found, %w", parent, len(f.cgroups), err)
	}
	a, err := protojson.Marshal(seen.sandbox)
	if err != nil {
		return err
	}
	c, err := protojson.Marshal(seen.container)
	f.sandbox, f.creation = strings.ReplaceAll(string(a), label, strange), strings.ReplaceAll(string(c), label, strange)
	return err
}

// trial is one pod of the floor.
type trial struct {
	sandbox  runtimeapi.RunPodSandboxRequest
	creation runtimeapi.CreateContainerRequest
	dirs     []string // to remove: directories first, then cgroups
	cgroups  []string
	id       string
}

// prepare makes a fresh pod's requests, and what they refer to.
func (f *floor) prepare() (*trial, error) {
	uid := uuid.NewString()
	name := "floor-" + uid[:8]
	fresh := strings.NewReplacer(f.uid, uid, f.name, name, f.root, f.dir)
	t := &trial{}
	if err := errors.Join(protojson.Unmarshal([]byte(fresh.Replace(f.sandbox)), &t.sandbox),
		protojson.Unmarshal([]byte(fresh.Replace(f.creation)), &t.creation)); err != nil {
		return nil, err
	}
	pod, logs := filepath.Join(f.dir, "pods", uid), t.sandbox.GetConfig().GetLogDirectory()
	t.dirs = []string{pod, logs}
	if err := errors.Join(os.CopyFS(pod, os.DirFS(f.files)),
		os.MkdirAll(filepath.Dir(filepath.Join(logs, t.creation.GetConfig().GetLogPath())), 0o755)); err != nil {
		return nil, err
	}
	for _, dir := range f.cgroups {
		dir = fresh.Replace(dir)
		t.cgroups = append(t.cgroups, dir)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// start makes the calls.
func (f *floor) start(ctx context.Context, t *trial) error {
	sb, err := f.rt.RunPodSandbox(ctx, &t.sandbox)
	if err != nil {
		return fmt.Errorf("running a sandbox: %w", err)
	}
	t.id = sb.PodSandboxId
	t.creation.PodSandboxId = t.id
	ctr, err := f.rt.CreateContainer(ctx, &t.creation)
	if err != nil {
		return fmt.Errorf("creating a container: %w", err)
	}
	_, err = f.rt.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: ctr.ContainerId})
	return err
}

func (f *floor) remove(ctx context.Context, t *trial) error {
	if _, err := f.rt.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: t.id}); err != nil {
		return err
	}
	_, err := f.rt.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: t.id})
	for _, dir := range t.dirs {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	for _, dir := range t.cgroups {
		err = errors.Join(err, os.Remove(dir))
	}
	return err
}

// burst starts n pods at once and tells when the last had started.
func (f *floor) burst(ctx context.Context, n int) (time.Duration, error) {
	trials := make([]*trial, n)
	errs := make([]error, n)
	for i := range n {
		if trials[i], errs[i] = f.prepare(); errs[i] != nil {
			return 0, errs[i]
		}
	}
	all := func(do func(context.Context, *trial) error) error {
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() { errs[i] = do(ctx, trials[i]) })
		}
		wg.Wait()
		return errors.Join(errs...)
	}
	began := time.Now()
	if err := all(f.start); err != nil {
		return 0, err
	}
	took := time.Since(began)
	return took, all(f.remove)
}
