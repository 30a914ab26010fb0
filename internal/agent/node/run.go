package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/journal"
)

var errLeaseContended = errors.New("another party keeps writing this lease: do two agents share one node name?")

// Runtime is the part of a CRI runtime client that the Node needs. Calls may
// hang; they delay nothing but the facts they bring.
type Runtime interface {
	Version(ctx context.Context, apiVersion string) (*runtimeapi.VersionResponse, error)
	Status(ctx context.Context, verbose bool) (*runtimeapi.StatusResponse, error)
	UpdateRuntimeConfig(ctx context.Context, config *runtimeapi.RuntimeConfig) error
}

// imageLister is the part of a CRI image client that the Node needs.
type imageLister interface {
	ListImages(ctx context.Context, filter *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error)
}

// Config is all the role needs. Log, Client, Runtime, Images, Board, Events,
// RootDir and Settings.Identity.Name are required.
type Config struct {
	Log    *slog.Logger
	Client kubernetes.Interface
	// Leases should have a connection of its own, so that nothing that clogs
	// the other one delays the heartbeat. Default: Client's.
	Leases  coordination.LeasesGetter
	Runtime Runtime
	Images  imageLister
	Board   *StatusInputs
	Events  record.EventRecorder
	// Journal defaults to journal.Discard.
	Journal journal.Sink
	// Metrics defaults to no metrics.
	Metrics prometheus.Registerer

	Settings Settings
	// Register is false if another party creates the Node object.
	Register bool
	// RootDir is the agent's directory; its file system is the node's
	// ephemeral storage.
	RootDir string
	// HostRoot is where /proc, /sys and /etc are found, default "/".
	HostRoot string
	// Host gathers addresses, default gatherHost.
	Host func(ctx context.Context, name string, lookup bool) (Host, error)
	// HostChanges returns a channel that is signalled when an interface's
	// address changes, until the context ends. Default: the kernel's
	// notifications if Host is the default too, else none.
	HostChanges func(ctx context.Context) (<-chan struct{}, error)

	// ReportEvery is nodeStatusReportFrequency, default 5 min.
	ReportEvery time.Duration
	// UpdateEvery is nodeStatusUpdateFrequency, default 10 s: the least time
	// between posts of changes that no one acts upon.
	UpdateEvery time.Duration
	// LeaseSeconds is nodeLeaseDurationSeconds, default 40.
	LeaseSeconds int32

	// OnNode, if set, gets every new state of the Node object, and nil
	// when it is deleted. It must return at once and not change the object.
	OnNode func(*v1.Node)
}

func (c *Config) complete() error {
	switch {
	case c.Log == nil || c.Client == nil || c.Runtime == nil || c.Images == nil || c.Board == nil || c.Events == nil:
		return errors.New("configuring the node role: Log, Client, Runtime, Images, Board and Events are required")
	case c.Settings.Identity.Name == "":
		return errors.New("configuring the node role: the node's name is empty")
	case c.RootDir == "":
		return errors.New("configuring the node role: RootDir is empty")
	}
	c.defaults()
	return nil
}

func (c *Config) defaults() {
	if c.Leases == nil {
		c.Leases = c.Client.CoordinationV1()
	}
	if c.Journal == nil {
		c.Journal = journal.Discard
	}
	if c.HostRoot == "" {
		c.HostRoot = "/"
	}
	if c.HostChanges == nil {
		c.HostChanges = func(context.Context) (<-chan struct{}, error) { return nil, nil }
		if c.Host == nil {
			c.HostChanges = addressChanges
		}
	}
	if c.Host == nil {
		c.Host = gatherHost
	}
	if c.ReportEvery == 0 {
		c.ReportEvery = 5 * time.Minute
	}
	if c.UpdateEvery == 0 {
		c.UpdateEvery = 10 * time.Second
	}
	if c.LeaseSeconds == 0 {
		c.LeaseSeconds = 40
	}
}

// Run keeps the Node object and its Lease true until the context ends. It
// returns early only for a configuration it cannot work with.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.complete(); err != nil {
		return err
	}
	metrics, err := newMetrics(cfg.Metrics, cfg.Settings.Identity.Name)
	if err != nil {
		return fmt.Errorf("registering node metrics: %w", err)
	}
	seen := newSeen(cfg.OnNode)
	facts := newFacts(cfg)
	facts.readHostInfo()
	if facts.hostInfo != nil {
		capacity := Capacity(facts.hostInfo, nil, cfg.Settings.Limits, nil)
		if err := checkReservation(capacity, cfg.Settings.Reserved); err != nil {
			return err
		}
	}
	renew := &leaseRenewer{
		name: cfg.Settings.Identity.Name, seconds: cfg.LeaseSeconds,
		leases: cfg.Leases.Leases(v1.NamespaceNodeLease), log: cfg.Log, metrics: metrics,
		uid: seen.uid, woken: seen.renewCh,
	}
	report := &reporter{cfg: cfg, facts: facts, seen: seen, metrics: metrics,
		cadence: cadence{Every: cfg.ReportEvery, Slow: cfg.UpdateEvery}}

	cfg.Events.Event(nodeRef(cfg.Settings.Identity.Name), v1.EventTypeNormal, "Starting", "Starting kubelet.")
	var wg sync.WaitGroup
	for _, part := range []func(context.Context){
		renew.run,
		report.run,
		facts.runProbe,
		facts.runImages,
		facts.runHost,
		facts.runRootFS,
		newWatch(cfg, seen).run,
		newCIDRPusher(cfg, seen).run,
	} {
		wg.Go(func() { part(ctx) })
	}
	wg.Wait()
	return nil
}

// nodeRef is the Node as events name it. By convention a node's own events
// carry its name in place of the UID, and that is how they are searched.
func nodeRef(name string) *v1.ObjectReference {
	return &v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: name, UID: types.UID(name)}
}

// seen is the newest known state of its own Node object, from the watch or
// from the answer to a write, whichever is newer.
type seen struct {
	mu       sync.Mutex
	node     *v1.Node
	onNode   func(*v1.Node)
	renewCh  chan struct{}
	statusCh chan struct{}
	cidrCh   chan struct{}
}

func newSeen(onNode func(*v1.Node)) *seen {
	return &seen{onNode: onNode, renewCh: make(chan struct{}, 1), statusCh: make(chan struct{}, 1), cidrCh: make(chan struct{}, 1)}
}

func (s *seen) get() *v1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node
}

func (s *seen) uid() types.UID {
	if node := s.get(); node != nil {
		return node.UID
	}
	return ""
}

// learn takes a state of the Node unless a newer one is known.
func (s *seen) learn(node *v1.Node) {
	s.mu.Lock()
	if s.node != nil && s.node.UID == node.UID && !newer(node.ResourceVersion, s.node.ResourceVersion) {
		s.mu.Unlock()
		return
	}
	known := s.node != nil && s.node.UID == node.UID
	s.node = node
	if s.onNode != nil {
		s.onNode(node)
	}
	s.mu.Unlock()
	if !known {
		trigger(s.renewCh)
	}
	trigger(s.statusCh)
	trigger(s.cidrCh)
}

// forget notes that the Node with this UID is gone; an empty UID means any.
func (s *seen) forget(uid types.UID) {
	s.mu.Lock()
	if s.node == nil || uid != "" && s.node.UID != uid {
		s.mu.Unlock()
		return
	}
	s.node = nil
	if s.onNode != nil {
		s.onNode(nil)
	}
	s.mu.Unlock()
	trigger(s.statusCh)
}

// newer compares resource versions of one object, which are decimal numbers;
// versions that are none are trusted to come in order.
func newer(a, b string) bool {
	if len(a) != len(b) && isDecimal(a) && isDecimal(b) {
		return len(a) > len(b)
	}
	return a > b || !isDecimal(a) || !isDecimal(b)
}

func isDecimal(text string) bool {
	for _, char := range text {
		if char < '0' || char > '9' {
			return false
		}
	}
	return text != ""
}
