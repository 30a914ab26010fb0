package pressure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/podutil"
)

// Labels by which the runtime's objects tell whose they are.
const (
	labelPodUID        = "io.kubernetes.pod.uid"
	labelContainerName = "io.kubernetes.container.name"
)

const (
	imagePeriod = 5 * time.Minute
	// containerNet is how often dead containers are looked for although no pod
	// ended: the pods' own workers clean up after themselves.
	containerNet   = 30 * time.Minute
	containerPause = time.Minute
	removeTimeout  = 2 * time.Minute
)

// runtime is the part of a CRI runtime client that collecting needs.
type runtime interface {
	ListContainers(context.Context, *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error)
	RemoveContainer(ctx context.Context, containerID string) error
	ListPodSandbox(context.Context, *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error)
	StopPodSandbox(ctx context.Context, podSandboxID string) error
	RemovePodSandbox(ctx context.Context, podSandboxID string) error
}

// imageService is the part of a CRI image client that collecting needs.
type imageService interface {
	ListImages(context.Context, *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error)
	RemoveImage(context.Context, *runtimeapi.ImageSpec) error
	ImageFsInfo(context.Context) (*runtimeapi.ImageFsInfoResponse, error)
}

// CollectorConfig is all a Collector needs; all but Limits, Journal and
// Metrics are required.
type CollectorConfig struct {
	Log      *slog.Logger
	NodeName string
	Runtime  runtime
	Images   imageService
	Events   record.EventRecorder
	// Pods lists the pods of the node with their current status. Nothing is
	// collected while SourcesReady is false: a pod not heard of yet would look
	// gone.
	Pods         func() []*v1.Pod
	SourcesReady func() bool
	RootDir      string
	LogsDir      string
	// LinkDir holds a link per container log; empty for none.
	LinkDir string

	HighPercent, LowPercent int32
	ImageLimits             ImageLimits
	ContainerLimits         ContainerLimits
	Journal                 journal.Sink
	Metrics                 prometheus.Registerer
}

// Collector removes dead containers, sandboxes, logs and unused images.
type Collector struct {
	cfg        CollectorConfig
	triggerRun chan struct{}

	mu        sync.Mutex // one collection at a time
	seen      map[string]imageTimes
	failures  int
	mount     string
	dedicated bool
	collected *prometheus.CounterVec
}

type imageTimes struct{ detected, used time.Time }

// NewCollector returns a Collector. It asks the runtime where it keeps images.
func NewCollector(ctx context.Context, cfg CollectorConfig) (*Collector, error) {
	if cfg.Log == nil || cfg.Runtime == nil || cfg.Images == nil || cfg.Events == nil || cfg.Pods == nil || cfg.SourcesReady == nil ||
		cfg.RootDir == "" {
		return nil, errors.New("configuring garbage collection: Log, Runtime, Images, Events, Pods, SourcesReady and RootDir are required")
	}
	if cfg.Journal == nil {
		cfg.Journal = journal.Discard
	}
	c := &Collector{cfg: cfg, triggerRun: make(chan struct{}, 1), seen: map[string]imageTimes{}}
	c.collected = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubelet_image_garbage_collected_total",
		Help: "Total number of images garbage collected by the kubelet, whether through disk usage or image age."}, []string{"reason"})
	if cfg.Metrics != nil {
		if err := cfg.Metrics.Register(c.collected); err != nil {
			return nil, fmt.Errorf("registering garbage collection metrics: %w", err)
		}
	}
	info, err := cfg.Images.ImageFsInfo(ctx)
	if err != nil {
		return nil, fmt.Errorf("asking the runtime for its image file system: %w", err)
	}
	if list := info.GetImageFilesystems(); len(list) > 0 {
		c.mount = list[0].GetFsId().GetMountpoint()
		c.dedicated = !sameDevice(c.mount, cfg.RootDir)
	}
	return c, nil
}

// ImageDir is where the runtime keeps images, empty if it does not say.
func (c *Collector) ImageDir() string { return c.mount }

// Dedicated tells whether images have a file system of their own.
func (c *Collector) Dedicated() bool { return c.dedicated }

// Trigger says that a pod ended.
func (c *Collector) Trigger() { signalOnce(c.triggerRun) }

func sameDevice(a, b string) bool {
	var x, y unix.Stat_t
	return unix.Stat(a, &x) == nil && unix.Stat(b, &y) == nil && x.Dev == y.Dev
}

func (c *Collector) run(ctx context.Context) {
	images := time.NewTimer(0)
	containers := time.NewTimer(containerPause)
	defer images.Stop()
	defer containers.Stop()
	triggered := c.triggerRun
	for {
		select {
		case <-ctx.Done():
			return
		case <-images.C:
			c.collectImages(ctx)
			images.Reset(imagePeriod)
		case <-triggered:
			containers.Reset(containerPause)
			triggered = nil // one delayed round serves all that end until then
		case <-containers.C:
			if err := c.collectContainers(ctx, c.cfg.ContainerLimits); err != nil && ctx.Err() == nil {
				c.cfg.Log.Warn("collecting dead containers", "err", err)
				c.event("ContainerGCFailed", err.Error())
			}
			containers.Reset(containerNet)
			triggered = c.triggerRun
		}
	}
}

// Reclaim removes whatever dead containers and unused images there are.
func (c *Collector) Reclaim(ctx context.Context, containers, images bool) {
	if containers {
		if err := c.collectContainers(ctx, ContainerLimits{PerContainer: 1, Total: -1, Finished: true}); err != nil {
			c.cfg.Log.Warn("reclaiming dead containers", "err", err)
		}
	}
	if images {
		c.mu.Lock()
		defer c.mu.Unlock()
		list, err := c.inventory(ctx, time.Now())
		if err != nil {
			c.cfg.Log.Warn("reclaiming unused images", "err", err)
			return
		}
		freed, removed := c.remove(ctx, unusedImages(time.Now(), list, c.cfg.ImageLimits, -1), "space")
		c.cfg.Log.Info("reclaimed unused images", "images", removed, "bytes", freed)
		c.reportFreed(removed, freed)
	}
}

// collectImages keeps the list of images current, and frees space if the file
// system is too full.
func (c *Collector) collectImages(ctx context.Context) {
	off := c.cfg.HighPercent >= 100 && c.cfg.ImageLimits.MaximumAge == 0
	if off || c.mount == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	list, err := c.inventory(ctx, now)
	if err != nil {
		if ctx.Err() == nil {
			c.imagesFailed(err)
		}
		return
	}
	c.remove(ctx, oldImages(now, list, c.cfg.ImageLimits), "age")
	var stat unix.Statfs_t
	if err := unix.Statfs(c.mount, &stat); err != nil {
		c.imagesFailed(fmt.Errorf("measuring %s: %w", c.mount, err))
		return
	}
	capacity, available := int64(stat.Blocks)*stat.Bsize, int64(stat.Bavail)*stat.Bsize
	if capacity == 0 { // percentages of nothing say nothing
		text := "invalid capacity 0 on image filesystem"
		c.event("InvalidDiskCapacity", text)
		c.imagesFailed(fmt.Errorf("%s: %s", text, c.mount))
		return
	}
	wanted := toFree(capacity, available, c.cfg.HighPercent, c.cfg.LowPercent)
	if wanted == 0 {
		c.failures = 0
		return
	}
	freed, removed := c.remove(ctx, unusedImages(now, list, c.cfg.ImageLimits, wanted), "space")
	if freed >= wanted {
		c.failures = 0
		c.cfg.Log.Info("freed space by removing unused images", "images", removed, "bytes", freed, "wanted", wanted)
		c.reportFreed(removed, freed)
		return
	}
	percent := 100 - available*100/capacity
	text := fmt.Sprintf("Insufficient free disk space on the node's image filesystem (%d%% of %s used). Failed to free sufficient space "+
		"by deleting unused images (freed %d bytes). "+
		"Consider resizing the disk or deleting unused files.", percent, amount(capacity), freed)
	c.event("FreeDiskSpaceFailed", text)
	c.imagesFailed(errors.New(text))
}

// imagesFailed tells of the second failure in a row: one may pass by itself.
func (c *Collector) imagesFailed(err error) {
	c.failures++
	c.cfg.Log.Warn("collecting unused images", "err", err)
	if c.failures > 1 {
		c.event("ImageGCFailed", err.Error())
	}
}

// inventory lists the images with their history; c.mu is held.
func (c *Collector) inventory(ctx context.Context, now time.Time) ([]storedImage, error) {
	listed, err := c.cfg.Images.ListImages(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("listing images: %w", err)
	}
	containers, err := c.cfg.Runtime.ListContainers(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("listing containers: %w", err)
	}
	used := usedImages(containers, c.cfg.Pods())
	seen := map[string]imageTimes{}
	var list []storedImage
	for _, image := range listed {
		times, known := c.seen[image.Id]
		if !known {
			times.detected = now
		}
		inUse := used[image.Id]
		for _, names := range [][]string{image.RepoTags, image.RepoDigests} {
			for _, name := range names {
				inUse = inUse || used[name]
			}
		}
		if inUse {
			times.used = now
		}
		seen[image.Id] = times
		list = append(list, storedImage{ID: image.Id, Bytes: int64(image.Size), Pinned: image.Pinned, InUse: inUse,
			Detected: times.detected,
			LastUsed: times.used})
	}
	c.seen = seen
	return list, nil
}

// usedImages are the IDs and names of images that something needs: every
// container the runtime knows, and every pod that may still start one.
func usedImages(containers []*runtimeapi.Container, pods []*v1.Pod) map[string]bool {
	used := map[string]bool{}
	for _, container := range containers {
		used[container.GetImageId()] = true
		used[container.GetImageRef()] = true
		used[container.GetImage().GetImage()] = true
	}
	for _, pod := range pods {
		if podutil.Terminal(pod) {
			continue
		}
		for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range list {
				used[normalized(list[i].Image)] = true
			}
		}
		for i := range pod.Spec.Volumes {
			if source := pod.Spec.Volumes[i].Image; source != nil {
				used[normalized(source.Reference)] = true
			}
		}
		for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses,
			pod.Status.EphemeralContainerStatuses} {
			for i := range list {
				used[strings.TrimPrefix(list[i].ImageID, "docker-pullable://")] = true
			}
		}
	}
	delete(used, "")
	return used
}

// normalized spells a reference as the runtime lists it: with its registry and
// tag.
func normalized(name string) string {
	if name == "" {
		return ""
	}
	domain, rest, ok := strings.Cut(name, "/")
	if !ok || !strings.ContainsAny(domain, ".:") && domain != "localhost" {
		if !ok {
			rest = "library/" + name
		} else {
			rest = name
		}
		domain = "docker.io"
	}
	last := rest[strings.LastIndexByte(rest, '/')+1:]
	if !strings.ContainsAny(last, ":@") {
		rest += ":latest"
	}
	return domain + "/" + rest
}

// remove deletes images and returns the bytes and number of those that went.
func (c *Collector) remove(ctx context.Context, images []storedImage, reason string) (freed int64, removed int) {
	for _, image := range images {
		asking, cancel := context.WithTimeout(ctx, removeTimeout)
		err := c.cfg.Images.RemoveImage(asking, &runtimeapi.ImageSpec{Image: image.ID})
		cancel()
		if err != nil {
			c.cfg.Log.Warn("removing an unused image", "image", image.ID, "err", err)
			continue
		}
		delete(c.seen, image.ID)
		c.collected.WithLabelValues(reason).Inc()
		freed += image.Bytes
		removed++
	}
	if removed > 0 {
		c.cfg.Journal.Append(journal.Record{Time: time.Now(), Part: "agent", Object: journal.Ref{Kind: "Node", Name: c.cfg.NodeName},
			Decision: "removed unused images",
			Because: []journal.Fact{{Name: "reason", Value: reason}, {Name: "images", Value: fmt.Sprint(removed)},
				{Name: "freed", Value: amount(freed)}}})
	}
	return freed, removed
}

// collectContainers removes dead containers beyond the limits, dead sandboxes
// without containers, and logs of pods that are gone.
func (c *Collector) collectContainers(ctx context.Context, limits ContainerLimits) error {
	if !c.cfg.SourcesReady() {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	pods := map[types.UID]podState{}
	for _, pod := range c.cfg.Pods() {
		pods[pod.UID] = PodLive
		if podutil.Terminal(pod) {
			pods[pod.UID] = PodOver
		}
	}
	state := func(uid types.UID) podState {
		if state, known := pods[uid]; known {
			return state
		}
		return PodGone
	}
	containers, err := c.cfg.Runtime.ListContainers(ctx, nil)
	if err != nil {
		return fmt.Errorf("listing containers: %w", err)
	}
	var failed []error
	removed := map[string]bool{}
	for _, container := range deadContainers(time.Now(), deadOf(containers), state, limits) {
		if err := c.cfg.Runtime.RemoveContainer(ctx, container.ID); err != nil {
			failed = append(failed, fmt.Errorf("removing container %s: %w", container.ID, err))
			continue
		}
		removed[container.ID] = true
	}
	occupied := map[string]bool{}
	for _, container := range containers {
		if !removed[container.Id] {
			occupied[container.PodSandboxId] = true
		}
	}
	if err := c.collectSandboxes(ctx, state, occupied); err != nil {
		failed = append(failed, err)
	}
	c.collectLogs(state)
	return errors.Join(failed...)
}

func deadOf(containers []*runtimeapi.Container) []deadContainer {
	var dead []deadContainer
	for _, container := range containers {
		if container.State != runtimeapi.ContainerState_CONTAINER_EXITED {
			continue
		}
		uid := container.Labels[labelPodUID]
		if uid == "" {
			continue // not ours
		}
		dead = append(dead, deadContainer{ID: container.Id, Pod: types.UID(uid), Name: container.Labels[labelContainerName],
			Ended: time.Unix(0, container.CreatedAt), Sandbox: container.PodSandboxId})
	}
	return dead
}

// collectSandboxes removes dead sandboxes without containers, except the
// newest of a pod that is still known.
func (c *Collector) collectSandboxes(ctx context.Context, state func(types.UID) podState, occupied map[string]bool) error {
	sandboxes, err := c.cfg.Runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return fmt.Errorf("listing sandboxes: %w", err)
	}
	newest := map[types.UID]*runtimeapi.PodSandbox{}
	for _, sandbox := range sandboxes {
		uid := types.UID(sandbox.GetMetadata().GetUid())
		if have := newest[uid]; have == nil || sandbox.CreatedAt > have.CreatedAt {
			newest[uid] = sandbox
		}
	}
	var failed []error
	for _, sandbox := range sandboxes {
		uid := types.UID(sandbox.GetMetadata().GetUid())
		known := state(uid) != PodGone
		if sandbox.State == runtimeapi.PodSandboxState_SANDBOX_READY || occupied[sandbox.Id] || sandbox.Labels[labelPodUID] == "" ||
			known && newest[uid] == sandbox {
			continue
		}
		if err := c.cfg.Runtime.StopPodSandbox(ctx, sandbox.Id); err != nil {
			failed = append(failed, fmt.Errorf("stopping sandbox %s: %w", sandbox.Id, err))
			continue
		}
		if err := c.cfg.Runtime.RemovePodSandbox(ctx, sandbox.Id); err != nil {
			failed = append(failed, fmt.Errorf("removing sandbox %s: %w", sandbox.Id, err))
		}
	}
	return errors.Join(failed...)
}

// collectLogs removes log directories of pods that are gone, and links whose
// log is.
func (c *Collector) collectLogs(state func(types.UID) podState) {
	if c.cfg.LogsDir != "" {
		entries, err := os.ReadDir(c.cfg.LogsDir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			c.cfg.Log.Warn("looking for old logs", "err", err)
		}
		for _, entry := range entries {
			parts := strings.Split(entry.Name(), "_") // namespace_name_uid
			if !entry.IsDir() || len(parts) != 3 || state(types.UID(parts[2])) != PodGone {
				continue
			}
			if err := os.RemoveAll(filepath.Join(c.cfg.LogsDir, entry.Name())); err != nil {
				c.cfg.Log.Warn("removing old logs", "err", err)
			}
		}
	}
	if c.cfg.LinkDir == "" {
		return
	}
	links, err := filepath.Glob(filepath.Join(c.cfg.LinkDir, "*.log"))
	if err != nil {
		return
	}
	for _, link := range links {
		if _, err := os.Stat(link); errors.Is(err, os.ErrNotExist) {
			_ = os.Remove(link)
		}
	}
}

func (c *Collector) event(reason, text string) {
	c.cfg.Events.Event(nodeRef(c.cfg.NodeName), v1.EventTypeWarning, reason, text)
}

// reportFreed says what a search for space came to.
func (c *Collector) reportFreed(removed int, freed int64) {
	if removed > 0 {
		c.cfg.Events.Eventf(nodeRef(c.cfg.NodeName), v1.EventTypeNormal, "FreedDiskSpace", "Removed %d unused images (%s)", removed,
			amount(freed))
	}
}
