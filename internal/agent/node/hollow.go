package node

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Hollows makes hollow nodes: the node role without a host and without
// goroutines of its own, so that one process can hold thousands. Registration,
// status and lease are the role's own code; the facts about the host are
// given, and anyone who drives a hollow node calls Report and Beat when they are
// due and tells it of its Node object.
type Hollows struct {
	cfg     Config
	metrics *metrics
}

// NewHollows takes what all hollow nodes share. Of cfg, Log, Client and Events
// are required; Runtime, Images, Board and what finds host facts are not
// looked at.
func NewHollows(cfg Config) (*Hollows, error) {
	if cfg.Log == nil || cfg.Client == nil || cfg.Events == nil {
		return nil, fmt.Errorf("configuring hollow nodes: Log, Client and Events are required")
	}
	cfg.defaults()
	cfg.Register = true
	m, err := newMetrics(cfg.Metrics, cfg.Settings.Identity.Name)
	if err != nil {
		return nil, fmt.Errorf("registering node metrics: %w", err)
	}
	return &Hollows{cfg: cfg, metrics: m}, nil
}

// Hollow is one hollow node. Report must not run twice at a time, nor Beat; a
// Report and a Beat may.
type Hollow struct {
	report       reporter
	leaseRenewer leaseRenewer
	seen         *seen
}

// New makes a node of an identity on a host with these facts, whose runtime
// always answers. The board says what else its status holds; boards may be
// shared.
func (s *Hollows) New(id Identity, hostInfo Inputs, statusInputs *StatusInputs) *Hollow {
	cfg := s.cfg
	cfg.Settings.Identity, cfg.Board = id, statusInputs
	h := &Hollow{seen: &seen{}}
	h.report = reporter{cfg: cfg, facts: &facts{cfg: Config{Board: statusInputs}, inputs: hostInfo}, seen: h.seen, metrics: s.metrics,
		cadence: cadence{Every: cfg.ReportEvery, Slow: cfg.UpdateEvery}, started: time.Now()}
	h.leaseRenewer = leaseRenewer{name: id.Name, seconds: cfg.LeaseSeconds, leases: cfg.Leases.Leases(v1.NamespaceNodeLease), log: cfg.Log,
		metrics: s.metrics, uid: h.seen.uid}
	return h
}

// Start tells that the agent begins, as every agent does.
func (h *Hollow) Start() {
	h.report.cfg.Events.Event(nodeRef(h.leaseRenewer.name), v1.EventTypeNormal, "Starting", "Starting kubelet.")
}

// Learn tells the newest state of the Node object.
func (h *Hollow) Learn(node *v1.Node) { h.seen.learn(node) }

// Forget tells that the Node object with this UID was deleted.
func (h *Hollow) Forget(uid types.UID) { h.seen.forget(uid) }

// UID is the Node object's, "" while the API is not known to hold one.
func (h *Hollow) UID() types.UID { return h.seen.uid() }

// SetBoard changes what the status says beside the host's facts. It must
// not run beside Report.
func (h *Hollow) SetBoard(statusInputs *StatusInputs) {
	h.report.cfg.Board, h.report.facts.cfg.Board = statusInputs, statusInputs
}

// Report does what is due about the Node object and says when to come back at
// the latest.
func (h *Hollow) Report(ctx context.Context) time.Time {
	now := time.Now()
	h.report.facts.inputs.Runtime.Asked, h.report.facts.inputs.Runtime.LastAnswer = now, now
	return h.report.pass(ctx)
}

// RenewLease renews the lease once and says how long to wait before the next; ok is
// false for as long as there is no Node.
func (h *Hollow) RenewLease(ctx context.Context) (wait time.Duration, ok bool) {
	return h.leaseRenewer.step(ctx)
}
