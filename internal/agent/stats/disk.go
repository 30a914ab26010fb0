package stats

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// firstDisk is how long a request waits for numbers of disks while none are
	// known: enough for the file systems, not for every writable layer.
	firstDisk = 100 * time.Millisecond
	// refreshMax bounds one round of reading.
	refreshMax = time.Minute
	// volumeMax is how long one volume may take before the round goes on
	// without it.
	volumeMax = 5 * time.Second
)

// diskFacts is one reading of everything that touches disks. It is never
// changed after it was published.
type diskFacts struct {
	at   time.Time
	root fsUsage
	// image and container are the runtime's file systems; nil if unknown. Only
	// used and inodesUsed differ between two on one device.
	image, container *fsUsage
	writable         map[string]DiskUse               // by container ID
	logs             map[types.UID]map[string]DiskUse // by pod and container
	volumes          map[types.UID][]volumeUsage
}

type volumeUsage struct {
	Volume
	usage fsUsage
	at    time.Time
}

// disk keeps the last reading and makes a new one when it is asked for and
// old.
type disk struct {
	cfg Config
	// dirs are where containers write, see Provider.writableDirs.
	dirs func() (dirs map[string]string, complete bool)

	mu      sync.Mutex
	facts   *diskFacts
	reading chan struct{} // closed when the running reading ends; nil if none
	hung    map[string]bool
}

func newDisk(cfg Config, dirs func() (map[string]string, bool)) *disk {
	return &disk{cfg: cfg, dirs: dirs, hung: map[string]bool{}}
}

// get returns the last reading, never nil. It starts a new one if that is old,
// and waits for it (for a moment) only if there is none yet.
func (d *disk) get(ctx context.Context) *diskFacts {
	d.mu.Lock()
	facts, now := d.facts, d.cfg.Now()
	if (facts == nil || now.Sub(facts.at) >= max(d.cfg.DiskAge, 0)) && d.reading == nil {
		d.reading = make(chan struct{})
		go d.read(context.WithoutCancel(ctx), d.reading)
	}
	reading := d.reading
	d.mu.Unlock()
	if facts != nil {
		return facts
	}
	timer := time.NewTimer(firstDisk)
	defer timer.Stop()
	select {
	case <-reading:
	case <-timer.C:
	case <-ctx.Done():
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.facts == nil {
		return &diskFacts{}
	}
	return d.facts
}

func (d *disk) read(ctx context.Context, done chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, refreshMax)
	defer cancel()
	pods := d.cfg.Pods()
	facts := &diskFacts{writable: map[string]DiskUse{}, logs: map[types.UID]map[string]DiskUse{}, volumes: map[types.UID][]volumeUsage{}}
	var err error
	if facts.root, err = statFS(d.cfg.RootDir); err != nil {
		d.cfg.Log.Warn("measuring the node's file system", "err", err)
	}
	if err := d.readImages(ctx, facts); err != nil {
		d.cfg.Log.Warn("asking the runtime what it stores", "err", err)
	}
	d.publishFirst(facts)
	if err := d.readLayers(ctx, facts); err != nil {
		d.cfg.Log.Warn("asking the runtime what containers wrote", "err", err)
	}
	for _, pod := range pods {
		if ctx.Err() != nil {
			break
		}
		facts.logs[pod.UID] = d.readLogs(pod)
		if d.cfg.Volumes == nil || d.cfg.DiskAge < 0 {
			continue
		}
		for _, volume := range d.cfg.Volumes(pod.UID) {
			if usage, ok := d.readVolume(ctx, volume); ok {
				facts.volumes[pod.UID] = append(facts.volumes[pod.UID], volumeUsage{Volume: volume, usage: usage, at: d.cfg.Now()})
			}
		}
	}
	facts.at = d.cfg.Now()
	d.mu.Lock()
	d.facts, d.reading = facts, nil
	d.mu.Unlock()
	close(done)
}

// publishFirst shows the file systems while the first reading goes on: the rest
// takes a second on a full node.
func (d *disk) publishFirst(facts *diskFacts) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.facts == nil {
		d.facts = &diskFacts{at: d.cfg.Now(), root: facts.root, image: facts.image, container: facts.container}
	}
}

func (d *disk) readImages(ctx context.Context, facts *diskFacts) error {
	if d.cfg.Images == nil {
		return nil
	}
	info, err := d.cfg.Images.ImageFsInfo(ctx)
	if err != nil {
		return fmt.Errorf("asking for the image file system: %w", err)
	}
	facts.image = runtimeFS(info.GetImageFilesystems())
	if facts.image != nil && facts.image.used == 0 {
		// The runtime does not measure its store, or not yet.
		images, err := d.cfg.Images.ListImages(ctx, nil)
		if err != nil {
			return fmt.Errorf("asking for the images: %w", err)
		}
		for _, image := range images {
			facts.image.used += image.GetSize()
		}
	}
	facts.container = runtimeFS(info.GetContainerFilesystems())
	if facts.container == nil {
		facts.container = facts.image
	}
	return nil
}

func (d *disk) readLayers(ctx context.Context, facts *diskFacts) error {
	dirs, complete := d.dirs()
	for id, dir := range dirs {
		if size, err := walk(dir); err == nil { // else the container is gone
			facts.writable[id] = size
		}
	}
	if complete || d.cfg.Runtime == nil {
		return nil
	}
	list, err := d.cfg.Runtime.ListContainerStats(ctx, nil)
	if err != nil {
		return fmt.Errorf("asking for writable layers: %w", err)
	}
	for _, stats := range list {
		layer := stats.GetWritableLayer()
		if layer == nil {
			continue
		}
		id := stats.GetAttributes().GetId()
		if _, measured := facts.writable[id]; measured {
			continue
		}
		facts.writable[id] = DiskUse{Bytes: layer.GetUsedBytes().GetValue(), Inodes: layer.GetInodesUsed().GetValue()}
	}
	return nil
}

// runtimeFS combines what the runtime says it uses with the size of the file
// system below.
func runtimeFS(list []*runtimeapi.FilesystemUsage) *fsUsage {
	if len(list) == 0 {
		return nil
	}
	usage, err := statFS(list[0].GetFsId().GetMountpoint())
	if err != nil {
		return nil // a mount point of another mount namespace
	}
	usage.used = list[0].GetUsedBytes().GetValue()
	usage.inodesUsed = list[0].GetInodesUsed().GetValue()
	return &usage
}

// readLogs sums the log files of each container of a pod.
func (d *disk) readLogs(pod *v1.Pod) map[string]DiskUse {
	sizes := map[string]DiskUse{}
	base := filepath.Join(d.cfg.LogsDir, pod.Namespace+"_"+pod.Name+"_"+string(pod.UID))
	containers, err := os.ReadDir(base)
	if err != nil {
		return sizes
	}
	for _, container := range containers {
		files, err := os.ReadDir(filepath.Join(base, container.Name()))
		if err != nil {
			continue
		}
		size := DiskUse{Inodes: 1}
		for _, file := range files {
			if info, err := file.Info(); err == nil {
				size.Bytes += uint64(info.Size())
				size.Inodes++
			}
		}
		sizes[container.Name()] = size
	}
	return sizes
}

// readVolume measures one volume. A volume that hangs (a dead NFS server) is
// left out until its measurement returns; it never holds up the others.
func (d *disk) readVolume(ctx context.Context, volume Volume) (fsUsage, bool) {
	d.mu.Lock()
	if d.hung[volume.Path] {
		d.mu.Unlock()
		return fsUsage{}, false
	}
	d.hung[volume.Path] = true
	d.mu.Unlock()

	type answer struct {
		usage fsUsage
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		usage, err := volume.read(ctx)
		d.mu.Lock()
		delete(d.hung, volume.Path)
		d.mu.Unlock()
		answers <- answer{usage, err}
	}()
	timer := time.NewTimer(volumeMax)
	defer timer.Stop()
	select {
	case got := <-answers:
		return got.usage, got.err == nil
	case <-timer.C:
		d.cfg.Log.Warn("a volume does not answer", "volume", volume.Name, "path", volume.Path)
		return fsUsage{}, false
	}
}

// read measures the volume, however long that takes.
func (v *Volume) read(ctx context.Context) (fsUsage, error) {
	if v.Measure != nil {
		size, err := v.Measure(ctx)
		return fsUsage{
			capacity: size.Capacity, available: size.Available, used: size.Used,
			inodes: size.Inodes, inodesFree: size.InodesFree, inodesUsed: size.InodesUsed,
		}, err
	}
	usage, err := statFS(v.Path)
	if err == nil && v.Shared {
		var size DiskUse
		size, err = walk(v.Path)
		usage.used, usage.inodesUsed = size.Bytes, size.Inodes
	}
	return usage, err
}

// walk sums what a directory tree occupies, each hard-linked file once. It
// stays on the file system of the directory. Files that vanish meanwhile are
// left out.
func walk(path string) (DiskUse, error) {
	var root unix.Stat_t
	if err := unix.Lstat(path, &root); err != nil {
		return DiskUse{}, fmt.Errorf("measuring %s: %w", path, err)
	}
	var size DiskUse
	linked := map[uint64]struct{}{}
	err := filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			if name == path {
				return err
			}
			return nil
		}
		var stat unix.Stat_t
		if unix.Lstat(name, &stat) != nil {
			return nil
		}
		if stat.Dev != root.Dev {
			if entry.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if stat.Nlink > 1 && !entry.IsDir() {
			if _, again := linked[stat.Ino]; again {
				return nil
			}
			linked[stat.Ino] = struct{}{}
		}
		size.Bytes += uint64(stat.Blocks) * 512
		size.Inodes++
		return nil
	})
	if err != nil {
		return size, fmt.Errorf("measuring %s: %w", path, err)
	}
	return size, nil
}
