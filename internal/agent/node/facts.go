package node

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"golang.org/x/sys/unix"
)

const (
	probeHealthy = 10 * time.Second       // between questions to a runtime that is well
	probeFirst   = 20 * time.Millisecond  // first repeat while it is not
	probeCap     = 500 * time.Millisecond // slowest repeat while it is not
	probeTimeout = 10 * time.Second
	listTimeout  = 2 * time.Minute
)

// facts gathers what the status follows from. Each source has a goroutine of
// its own, so that one that hangs leaves the others fresh.
type facts struct {
	cfg     Config
	changed chan struct{}

	mu       sync.Mutex
	hostInfo *HostInfo
	inputs   Inputs // all but what the Board pins
}

func newFacts(cfg Config) *facts {
	return &facts{cfg: cfg, changed: make(chan struct{}, 1)}
}

// snapshot returns everything known now.
func (f *facts) snapshot() Inputs {
	f.mu.Lock()
	in := f.inputs
	f.mu.Unlock()
	f.cfg.Board.fill(&in)
	return in
}

func (f *facts) set(apply func(*Inputs)) {
	f.mu.Lock()
	apply(&f.inputs)
	f.mu.Unlock()
	trigger(f.changed)
}

func (f *facts) readHostInfo() {
	hostInfo, err := ReadHostInfo(f.cfg.HostRoot)
	if err != nil {
		f.cfg.Log.Error("reading host facts", "err", err)
	}
	f.hostInfo = hostInfo
	f.set(func(in *Inputs) { in.Host, in.HostErr = hostInfo, err })
}

// runProbe asks the runtime for its status: rarely while it is well, quickly
// while it is not, at once when asked to.
func (f *facts) runProbe(ctx context.Context) {
	delay := probeFirst
	for ctx.Err() == nil {
		if f.probe(ctx) {
			delay = probeFirst
			waitFor(ctx, probeHealthy, f.cfg.Board.probeCh)
			continue
		}
		waitFor(ctx, delay, f.cfg.Board.probeCh)
		delay = min(delay*3/2, probeCap)
	}
}

// probe asks once and tells whether runtime and network are ready.
func (f *facts) probe(ctx context.Context) bool {
	f.mu.Lock()
	view := f.inputs.Runtime
	if view.Asked.IsZero() {
		view.Asked = time.Now()
		f.inputs.Runtime = view
	}
	f.mu.Unlock()

	asking, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if view.Version == nil || view.Err != nil {
		version, err := f.cfg.Runtime.Version(asking, "v1")
		if err != nil {
			f.noteRuntimeError(ctx, fmt.Errorf("asking the runtime for its version: %w", err))
			return false
		}
		view.Version = version
	}
	status, err := f.cfg.Runtime.Status(asking, false)
	if err != nil {
		f.noteRuntimeError(ctx, fmt.Errorf("asking the runtime for its status: %w", err))
		return false
	}
	firstAnswer := view.Status == nil
	f.set(func(in *Inputs) {
		in.Runtime.LastAnswer, in.Runtime.Status, in.Runtime.Version, in.Runtime.Err = time.Now(), status, view.Version, nil
	})
	if firstAnswer {
		f.cfg.Board.ImagesChanged()
	}
	return len(runtimeConditions(status)) == 0
}

func (f *facts) noteRuntimeError(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	f.mu.Lock()
	was := f.inputs.Runtime.Err
	f.inputs.Runtime.Err = err
	f.mu.Unlock()
	if was == nil || was.Error() != err.Error() {
		f.cfg.Log.Warn("container runtime does not answer", "err", err)
		trigger(f.changed)
	}
}

// runImages lists images when they changed, and before each forced
// report in case no event came.
func (f *facts) runImages(ctx context.Context) {
	failures := 0
	for {
		wait := f.cfg.ReportEvery
		if failures > 0 {
			wait = backoff(failures, 0.5)
		}
		waitFor(ctx, wait, f.cfg.Board.imagesCh)
		if ctx.Err() != nil {
			return
		}
		asking, cancel := context.WithTimeout(ctx, listTimeout)
		list, err := f.cfg.Images.ListImages(asking, nil)
		cancel()
		if err != nil {
			failures++
			if failures == 1 && ctx.Err() == nil {
				f.cfg.Log.Warn("listing images for the node status", "err", err)
			}
			continue
		}
		failures = 0
		images := images(list, f.cfg.Settings.MaxImages)
		f.set(func(in *Inputs) { in.Images = images })
	}
}

// runHost keeps the addresses true: at start, when the kernel says that an
// interface's address changed, and before each forced report.
func (f *facts) runHost(ctx context.Context) {
	changes, err := f.cfg.HostChanges(ctx)
	if err != nil {
		f.cfg.Log.Warn("subscribing to address changes; they will be noticed with the next report only", "err", err)
	}
	failures := 0
	for {
		wait := f.cfg.ReportEvery
		if !f.readHost(ctx) {
			wait = backoff(failures+3, 0)
			failures++
		} else {
			failures = 0
		}
		waitFor(ctx, wait, changes)
		if ctx.Err() != nil {
			return
		}
		// Changes come in bursts: take the rest of this one along.
		waitFor(ctx, 50*time.Millisecond, nil)
	}
}

// readHost gathers once and tells whether the node has an address now. An
// address that was chosen stays as long as an interface has it: a DNS server
// that answers late must not move the node.
func (f *facts) readHost(ctx context.Context) bool {
	id := f.cfg.Settings.Identity
	f.mu.Lock()
	current := f.inputs.Addresses
	f.mu.Unlock()
	host, err := f.cfg.Host(ctx, id.Name, len(current) == 0)
	if ctx.Err() != nil {
		return false
	}
	if err == nil && stillThere(current, host.Interfaces) {
		return true
	}
	var addresses []v1.NodeAddress
	if err == nil {
		addresses, err = Addresses(id, host)
	}
	if err != nil {
		f.cfg.Log.Warn("finding the node's addresses", "err", err)
	}
	f.set(func(in *Inputs) { in.Addresses, in.AddressErr = addresses, err })
	return err == nil
}

func stillThere(addresses []v1.NodeAddress, interfaces []netip.Addr) bool {
	found := false
	for _, address := range addresses {
		if address.Type != v1.NodeInternalIP {
			continue
		}
		ip, err := netip.ParseAddr(address.Address)
		if err != nil || !slices.Contains(interfaces, ip) {
			return false
		}
		found = true
	}
	return found
}

// runRootFS measures the file system of the agent's directory. A disk that
// hangs blocks this goroutine only.
func (f *facts) runRootFS(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		wait := f.cfg.ReportEvery
		var stat unix.Statfs_t
		err := unix.Statfs(f.cfg.RootDir, &stat)
		if err != nil {
			err = fmt.Errorf("measuring the file system of %s: %w", f.cfg.RootDir, err)
			wait = backoff(failures, 0)
			failures++
		} else {
			failures = 0
		}
		f.set(func(in *Inputs) {
			in.RootFSErr = err
			if err == nil {
				in.RootFS = &FS{CapacityBytes: int64(stat.Blocks) * stat.Bsize, Inodes: int64(stat.Files)}
			}
		})
		waitFor(ctx, wait, nil)
	}
}

// waitFor returns when the context ends, the time is over or ch is signalled.
func waitFor(ctx context.Context, wait time.Duration, ch <-chan struct{}) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-ch:
	}
}
