package resource

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	helpers "k8s.io/component-helpers/resource"
)

// Config says how the node's cgroup tree is laid out.
type Config struct {
	// Driver is how the runtime names cgroups.
	Driver Driver
	// Root is the cgroup below which the pods cgroup is made; "" or "/" for
	// the top of each hierarchy.
	Root string
	// PerQOS builds the class tree and pod cgroups (cgroupsPerQOS). Without it
	// EnsurePod makes nothing and returns Root.
	PerQOS bool
	// Pod shapes pod cgroups.
	Pod PodOptions
	// Exclusive tells whether containers of a pod own CPUs, which takes
	// the quota off the pod; nil: none do.
	Exclusive func(types.UID) bool
	// Pods limits the cgroup of all pods: node capacity less reservations.
	// Zero fields are not limited.
	Pods Limits
	// Hierarchy is where cgroups are mounted; see FindHierarchy.
	Hierarchy Hierarchy
	// Units starts slices through systemd. Needed by the Systemd driver only.
	Units Units
	Log   *slog.Logger
}

// Cgroups keeps the cgroup tree of the node's pods. Methods may be called
// concurrently; those of one pod are expected from one owner at a time.
type Cgroups struct {
	cfg   Config
	names names
	// create makes control files that are missing. Tests on a plain directory
	// set it; the kernel's own file systems provide their files.
	create bool

	mu sync.Mutex
	// burstable holds the CPU request (milli) of each burstable pod; their sum
	// weighs the class against the others.
	burstable map[types.UID]int64
	// written remembers what the class cgroup holds, to write only changes.
	written uint64
	// reserved holds the memory request of each pod that is protected from
	// reclaim, by class: protection of a cgroup counts as far as that of those
	// above it reaches. protected is what was written of the sums.
	reserved  map[v1.PodQOSClass]map[types.UID]int64
	protected [2]int64
}

// New checks the configuration. It touches no file.
func New(cfg Config) (*Cgroups, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	n, err := newNames(cfg.Driver, cfg.Root)
	if err != nil {
		return nil, err
	}
	if cfg.Driver == Systemd && cfg.Units == nil {
		return nil, errors.New("cgroup driver systemd: no connection to systemd; use driver cgroupfs on hosts without it")
	}
	if cfg.Hierarchy.Version() == 1 {
		for _, c := range []string{"cpu", "memory"} {
			if cfg.Hierarchy.V1[c] == "" {
				return nil, fmt.Errorf("cgroup v1 controller %q is not mounted; mount it below /sys/fs/cgroup or enable it on the kernel "+
					"command line", c)
			}
		}
	}
	return &Cgroups{cfg: cfg, names: n, burstable: map[types.UID]int64{},
		reserved: map[v1.PodQOSClass]map[types.UID]int64{v1.PodQOSGuaranteed: {}, v1.PodQOSBurstable: {}}}, nil
}

// PodsPath is the cgroup of all pods relative to the mount points.
func (c *Cgroups) PodsPath() string { return c.names.pods() }

// PodPath is the cgroup of one pod relative to the mount points.
func (c *Cgroups) PodPath(pod *v1.Pod) string { return c.names.pod(pod.UID, QOS(pod)) }

// Parent is the cgroup that a pod's containers lie in, made or not.
func (c *Cgroups) Parent(pod *v1.Pod) string {
	if !c.cfg.PerQOS {
		return c.names.render()
	}
	return c.PodPath(pod)
}

// EnsureRoot makes the cgroup of all pods and one per class below it.
// Idempotent; running pods are not disturbed.
func (c *Cgroups) EnsureRoot() error {
	if !c.cfg.PerQOS {
		return nil
	}
	if err := c.ensure(c.names.pods(), c.cfg.Pods); err != nil {
		return err
	}
	huge := map[string]int64{}
	for _, size := range c.cfg.Pod.HugepageSizes {
		huge[size] = Unlimited
	}
	if err := c.ensure(c.names.class(v1.PodQOSBestEffort), Limits{CPUShares: minShares, Hugepages: huge}); err != nil {
		return err
	}
	// The weight of the burstable class follows its pods; a restarted agent
	// must not lower it while it learns them again.
	return c.ensure(c.names.class(v1.PodQOSBurstable), Limits{Hugepages: huge})
}

// EnsurePod makes the pod's cgroup with its limits and returns the name to
// pass to the runtime as cgroup parent. Idempotent.
func (c *Cgroups) EnsurePod(pod *v1.Pod) (string, error) {
	p := c.Parent(pod)
	if !c.cfg.PerQOS {
		return p, nil
	}
	options := c.cfg.Pod
	options.ExclusiveCPUs = c.cfg.Exclusive != nil && c.cfg.Exclusive(pod.UID)
	if err := c.ensure(p, PodLimits(pod, options)); err != nil {
		return "", fmt.Errorf("making cgroup of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return p, errors.Join(c.weigh(pod), c.protect(pod))
}

// Update rewrites the limits of a pod's cgroup.
func (c *Cgroups) Update(pod *v1.Pod) error {
	_, err := c.EnsurePod(pod)
	return err
}

// weigh keeps the burstable class as heavy as the sum of its pods' requests.
func (c *Cgroups) weigh(pod *v1.Pod) error {
	if QOS(pod) != v1.PodQOSBurstable {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	requests := helpers.PodRequests(pod, helpers.PodResourcesOptions{})
	c.burstable[pod.UID] = requests.Cpu().MilliValue()
	return c.writeBurstable()
}

// protect keeps the cgroups above pods protected by the sum of what the pods
// are.
func (c *Cgroups) protect(pod *v1.Pod) error {
	class := c.reserved[QOS(pod)]
	if !c.cfg.Pod.ReserveMemory || class == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	requests := helpers.PodRequests(pod, helpers.PodResourcesOptions{})
	class[pod.UID] = requests.Memory().Value()
	return c.writeProtection()
}

// writeProtection is called with mu held.
func (c *Cgroups) writeProtection() error {
	var sums [2]int64
	for i, class := range []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable} {
		for _, n := range c.reserved[class] {
			sums[i] += n
		}
	}
	if sums == c.protected {
		return nil
	}
	low := strconv.FormatInt(sums[1], 10)
	err := c.apply(c.names.pods(), Limits{Unified: map[string]string{memoryMin: strconv.FormatInt(sums[0], 10), memoryLow: low}})
	if err == nil {
		err = c.apply(c.names.class(v1.PodQOSBurstable), Limits{Unified: map[string]string{memoryLow: low}})
	}
	if err != nil {
		return fmt.Errorf("protecting the memory of pods: %w", err)
	}
	c.protected = sums
	return nil
}

// writeBurstable is called with mu held.
func (c *Cgroups) writeBurstable() error {
	var milli int64
	for _, m := range c.burstable {
		milli += m
	}
	shares := CPUShares(milli)
	if shares == c.written {
		return nil
	}
	if err := c.apply(c.names.class(v1.PodQOSBurstable), Limits{CPUShares: shares}); err != nil {
		return fmt.Errorf("weighing the burstable class: %w", err)
	}
	c.written = shares
	return nil
}

// RemovePod kills what is left in the pod's cgroup and removes it from every
// hierarchy. A pod that has none is no error.
func (c *Cgroups) RemovePod(uid types.UID) error {
	return c.RemovePodContext(context.Background(), uid)
}

// RemovePodContext is RemovePod that stops waiting for killed processes when
// ctx ends; a later call continues.
func (c *Cgroups) RemovePodContext(ctx context.Context, uid types.UID) error {
	if !c.cfg.PerQOS {
		return nil
	}
	var errs []error
	for _, qos := range []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort} {
		if err := c.remove(ctx, c.names.pod(uid, qos)); err != nil {
			errs = append(errs, fmt.Errorf("removing cgroup of pod %s: %w", uid, err))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, class := range c.reserved {
		delete(class, uid)
	}
	if _, ok := c.burstable[uid]; ok {
		delete(c.burstable, uid)
		errs = append(errs, c.writeBurstable())
	}
	if c.cfg.Pod.ReserveMemory {
		errs = append(errs, c.writeProtection())
	}
	return errors.Join(errs...)
}

// Orphans removes the cgroups of pods that keep refuses. Errors of one pod do
// not stop the others.
func (c *Cgroups) Orphans(ctx context.Context, keep func(uid types.UID) bool) error {
	if !c.cfg.PerQOS {
		return nil
	}
	gone := map[types.UID]bool{}
	for _, mount := range c.mounts() {
		for _, qos := range []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort} {
			entries, err := os.ReadDir(filepath.Join(mount, c.names.class(qos)))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("listing pod cgroups: %w", err)
			}
			for _, e := range entries {
				if uid, ok := c.names.podUID(e.Name()); ok && e.IsDir() && !keep(uid) {
					gone[uid] = true
				}
			}
		}
	}
	var errs []error
	for uid := range gone {
		c.cfg.Log.Info("removing orphaned pod cgroup", "pod", uid)
		errs = append(errs, c.RemovePodContext(ctx, uid))
	}
	return errors.Join(errs...)
}

// ensure makes the cgroup at p in each hierarchy and applies limits.
func (c *Cgroups) ensure(p string, l Limits) error {
	if c.cfg.Driver == Systemd {
		if err := c.cfg.Units.StartSlice(filepath.Base(p), unitProperties(c.cfg.Hierarchy.Version(), l)); err != nil {
			return fmt.Errorf("starting %s: %w", filepath.Base(p), err)
		}
	}
	if c.cfg.Hierarchy.Version() == 2 {
		if err := c.delegate(p); err != nil {
			return err
		}
	} else {
		for _, mount := range c.written1() {
			if err := os.MkdirAll(filepath.Join(mount, p), 0o755); err != nil {
				return fmt.Errorf("making cgroup: %w", err)
			}
		}
	}
	return c.apply(p, l)
}

// delegate makes p on v2 and turns on the controllers its children need, one
// at a time because the kernel refuses all if one is missing.
func (c *Cgroups) delegate(p string) error {
	dir := c.cfg.Hierarchy.Unified
	elements := strings.Split(strings.Trim(p, "/"), "/")
	for i := 0; ; i++ {
		available, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("reading controllers: %w", err)
		}
		enabled, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("reading delegated controllers: %w", err)
		}
		has := strings.Fields(string(available))
		on := strings.Fields(string(enabled))
		for _, name := range v2Controllers {
			if !contains(has, name) || contains(on, name) {
				continue
			}
			if err := c.write(filepath.Join(dir, "cgroup.subtree_control"), "+"+name); err != nil {
				return fmt.Errorf("delegating controller %s below %s: %w", name, dir, err)
			}
		}
		if i == len(elements) {
			return nil
		}
		dir = filepath.Join(dir, elements[i])
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("making cgroup: %w", err)
		}
	}
}

// apply writes limits to an existing cgroup. Controllers this host lacks are
// skipped: admission refuses pods that need them, and a host without hugetlb
// has no huge pages to limit.
func (c *Cgroups) apply(p string, l Limits) error {
	if c.cfg.Driver == Systemd {
		if props := unitProperties(c.cfg.Hierarchy.Version(), l); len(props) > 0 {
			if err := c.cfg.Units.SetProperties(filepath.Base(p), props); err != nil {
				return fmt.Errorf("setting properties of %s: %w", filepath.Base(p), err)
			}
		}
	}
	for _, s := range settings(c.cfg.Hierarchy.Version(), l) {
		mount := c.cfg.Hierarchy.Unified
		if mount == "" {
			if mount = c.cfg.Hierarchy.V1[s.controller]; mount == "" {
				continue
			}
		}
		err := c.write(filepath.Join(mount, p, s.file), s.value)
		if s.controller == "hugetlb" && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("writing %s=%s: %w", s.file, s.value, err)
		}
	}
	return nil
}

func (c *Cgroups) write(file, value string) error {
	flags := os.O_WRONLY | os.O_TRUNC
	if c.create {
		flags |= os.O_CREATE
	}
	f, err := os.OpenFile(file, flags, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// written1 are the distinct v1 mounts this package writes to.
func (c *Cgroups) written1() []string {
	var out []string
	for _, name := range v1Controllers {
		if m := c.cfg.Hierarchy.V1[name]; m != "" && !contains(out, m) {
			out = append(out, m)
		}
	}
	return out
}

// mounts are all places where a pod's cgroup may exist.
func (c *Cgroups) mounts() []string {
	out := c.written1()
	if c.cfg.Hierarchy.Unified != "" {
		out = []string{c.cfg.Hierarchy.Unified}
	}
	for _, m := range c.cfg.Hierarchy.Others {
		if !contains(out, m) {
			out = append(out, m)
		}
	}
	return out
}

func contains(list []string, s string) bool {
	for _, e := range list {
		if e == s {
			return true
		}
	}
	return false
}
