package stats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime is the part of a CRI runtime client that measuring needs.
type Runtime interface {
	ListContainerStats(context.Context, *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error)
}

// imageFS is the part of a CRI image client that measuring needs.
type imageFS interface {
	ImageFsInfo(context.Context) (*runtimeapi.ImageFsInfoResponse, error)
	ListImages(context.Context, *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error)
}

// Volume is a volume of a pod that can be measured.
type Volume struct {
	Name string
	// Path is where it is mounted on the node.
	Path string
	// Claim is the PersistentVolumeClaim's name, empty for other volumes.
	Claim string
	// Shared says that the volume shares the agent's file system (an emptyDir
	// on disk): it is measured by walking it instead of asking the file
	// system.
	Shared bool
	// Measure, if set, knows the volume's size better than its file system.
	Measure func(context.Context) (VolumeSize, error)
}

// VolumeSize is how large and how full a volume is, in bytes and files.
type VolumeSize struct {
	Capacity, Available, Used      uint64
	Inodes, InodesFree, InodesUsed uint64
}

// Config is all that measuring needs. Log, NodeName, Pods, PodCgroup, Reader
// and RootDir are required.
type Config struct {
	Log      *slog.Logger
	NodeName string
	// Pods lists the pods of the node with their current status.
	Pods func() []*v1.Pod
	// PodCgroup is the path of a pod's cgroup relative to the mounts,
	// PodsCgroup that of all pods together.
	PodCgroup  func(*v1.Pod) string
	PodsCgroup string
	// SystemCgroups name further cgroups to show, such as "kubelet" and
	// "runtime".
	SystemCgroups map[string]string
	Reader        *reader
	// Runtime and Images may be nil: then nothing is known of writable layers
	// and images.
	Runtime Runtime
	Images  imageFS
	// Volumes lists what of a pod's volumes is mounted; nil for none.
	Volumes func(types.UID) []Volume
	// RootDir is the agent's directory, LogsDir the one of pod logs (default
	// /var/log/pods), HostRoot where /proc is (default "/").
	RootDir, LogsDir, HostRoot string
	// DiskAge is how old numbers of disks may get before a request has them
	// read again (volumeStatsAggPeriod), default 1 min; negative switches
	// reading volumes off.
	DiskAge time.Duration
	// Now is the clock, default time.Now.
	Now func() time.Time
}

// Provider answers for the stats of a node. It is safe for concurrent use.
type Provider struct {
	cfg      Config
	hostInfo hostInfo

	disk   *disk
	layers layers
	places places

	mu      sync.Mutex
	rates   map[string]sample // by cgroup path
	request uint64            // counts questions for rates
}

// sample is a counter at a time, to make a rate from.
type sample struct {
	at    time.Time
	nanos uint64
	rate  uint64
	seen  uint64 // number of the request that last used it
}

// New returns a Provider.
func New(cfg Config) (*Provider, error) {
	if cfg.Log == nil || cfg.NodeName == "" || cfg.Pods == nil || cfg.PodCgroup == nil || cfg.Reader == nil || cfg.RootDir == "" {
		return nil, errors.New("configuring stats: Log, NodeName, Pods, PodCgroup, Reader and RootDir are required")
	}
	if cfg.LogsDir == "" {
		cfg.LogsDir = "/var/log/pods"
	}
	if cfg.HostRoot == "" {
		cfg.HostRoot = "/"
	}
	if cfg.DiskAge == 0 {
		cfg.DiskAge = time.Minute
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	hostInfo, err := readHostInfo(cfg.HostRoot)
	if err != nil {
		return nil, err
	}
	p := &Provider{cfg: cfg, hostInfo: hostInfo, rates: map[string]sample{}}
	p.disk = newDisk(cfg, p.writableDirs)
	return p, nil
}

// podOnly is read for pods and not for each of their containers unless
// everything is asked for.
const podOnly = PIDs

// minRate is the shortest time between two samples that makes a rate; within
// it the last rate is given again.
const minRate = time.Second

// rate returns the nanocores used since the last question, or since birth when
// there was none.
func (p *Provider) rate(path string, nanos uint64, birth, now time.Time) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	last, known := p.rates[path]
	if !known || nanos < last.nanos {
		last = sample{at: birth, nanos: 0}
		known = false
	}
	elapsed := now.Sub(last.at)
	if known && elapsed < minRate {
		last.seen = p.request
		p.rates[path] = last
		return last.rate
	}
	rate := uint64(0)
	if elapsed > 0 {
		rate = uint64(float64(nanos-last.nanos) / elapsed.Seconds())
	}
	p.rates[path] = sample{at: now, nanos: nanos, rate: rate, seen: p.request}
	return rate
}

// forgetRates drops samples that the last two requests did not use.
func (p *Provider) forgetRates() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for path, sample := range p.rates {
		if sample.seen+2 < p.request {
			delete(p.rates, path)
		}
	}
	p.request++
}

// measured is a pod with what its cgroups used.
type measured struct {
	pod        *v1.Pod
	path       string
	usage      Usage
	network    []netInterface
	containers []measuredContainer
}

type measuredContainer struct {
	name, id, image, path string
	started               time.Time
	usage                 Usage
	inside                *processFacts // nil unless asked for
}

// wants is what to measure of pods.
type wants struct {
	parts   parts
	network bool
	// processes asks for what the processes of containers have open.
	processes bool
}

// measure reads the cgroups of all pods that have one, several at a time.
// Pods and containers that end meanwhile are left out.
func (p *Provider) measure(ctx context.Context, w wants) ([]measured, error) {
	pods := p.cfg.Pods()
	results := make([]measured, len(pods))
	p.places.begin()
	var wg sync.WaitGroup
	var next atomic.Int64
	for range min(runtime.GOMAXPROCS(0), 4, len(pods)) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(pods) && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				results[i] = p.measurePod(pods[i], w)
			}
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("measuring pods: %w", err)
	}
	p.places.forget()
	kept := results[:0]
	for i := range results {
		if results[i].pod != nil {
			kept = append(kept, results[i])
		}
	}
	return kept, nil
}

// measurePod returns a zero value if the pod has no cgroup.
func (p *Provider) measurePod(pod *v1.Pod, w wants) measured {
	inside := w.parts
	if w.parts != Everything {
		inside &^= podOnly
	}
	path := p.cfg.PodCgroup(pod)
	usage, err := p.cfg.Reader.Read(path, w.parts)
	if err != nil {
		if !errors.Is(err, ErrGone) {
			p.cfg.Log.Warn("measuring a pod", "namespace", pod.Namespace, "pod", pod.Name, "err", err)
		}
		return measured{}
	}
	result := measured{pod: pod, path: path, usage: usage, containers: make([]measuredContainer, 0, len(pod.Status.ContainerStatuses))}
	network := w.network && !pod.Spec.HostNetwork
	find := finder{p: p, pod: path}
	for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses,
		pod.Status.EphemeralContainerStatuses} {
		for i := range list {
			status := &list[i]
			if status.State.Running == nil {
				continue
			}
			id := bareID(status.ContainerID)
			place := find.container(id)
			if place == nil {
				continue
			}
			used, err := p.cfg.Reader.Read(place.path, inside)
			if err != nil {
				continue
			}
			if network {
				result.network = p.places.network(p, place)
				network = len(result.network) == 0
			}
			var facts *processFacts
			if w.processes {
				facts = p.processesOf(place.path)
			}
			result.containers = append(result.containers, measuredContainer{
				inside: facts, name: status.Name, id: id, image: status.Image, path: place.path,
				started: status.State.Running.StartedAt.Time, usage: used})
		}
	}
	return result
}

// children lists the cgroups below a pod's.
func (p *Provider) children(path string) []string {
	p.cfg.Reader.calls.Add(4)
	dir, err := os.Open(filepath.Join(p.cfg.Reader.tree(), path))
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil
	}
	return names
}

// findChild finds the cgroup of a container: named by its ID, or by a scope
// such as cri-containerd-<id>.scope.
func findChild(children []string, id string) string {
	if id == "" {
		return ""
	}
	for _, child := range children {
		if child == id || strings.HasSuffix(child, "-"+id+".scope") {
			return child
		}
	}
	return ""
}
