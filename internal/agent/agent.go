// Package agent is the node agent: it wires the parts below it, each of which
// does one job, into one role.
package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/record"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/internal/agent/network"
	"github.com/berth-dev/berth/internal/agent/node"
	"github.com/berth-dev/berth/internal/agent/pressure"
	"github.com/berth-dev/berth/internal/agent/serve"
	"github.com/berth-dev/berth/internal/agent/start"
	"github.com/berth-dev/berth/internal/journal"
)

// GuardFunc makes a pod with these addresses safe to run.
type GuardFunc = start.GuardFunc

// Config is what the agent runs with. NodeName, RuntimeEndpoint, RootDir,
// Kubelet and Log are required.
type Config struct {
	// NodeName is the Node this agent is.
	NodeName string
	// Client is the API; nil runs static pods alone. It should have no limit on
	// its request rate: the agent bounds itself, and a limit would delay pods.
	Client kubernetes.Interface
	// Leases should have a connection of its own; nil uses Client.
	Leases coordination.LeasesGetter
	// RuntimeEndpoint is the CRI socket; ImageEndpoint, where it differs, that
	// of the image service.
	RuntimeEndpoint, ImageEndpoint string
	// RootDir holds pods, volumes and checkpoints.
	RootDir string
	// PodLogsDir holds the pods' logs; empty takes it from Kubelet.
	PodLogsDir string
	// LogLinkDir gets a link per container log (/var/log/containers); empty for
	// none.
	LogLinkDir string
	// Kubelet is the effective configuration with defaults filled in.
	Kubelet *kubeletv1beta1.KubeletConfiguration

	// Node shapes the Node object; its identity's name is set from NodeName.
	Node node.Settings
	// ClientCertificate is what the agent shows to the API server, for the
	// metric of its lifetime; may be nil.
	ClientCertificate func() *tls.Certificate
	// Register is false when somebody else makes the Node object.
	Register bool
	// NodeIPs are addresses to use until the Node object has some.
	NodeIPs []string
	// PodCIDRs are the node's pod CIDRs until the Node object has some.
	PodCIDRs []string
	// CNIConfDir, when set, gets a bridge network made from the pod CIDRs.
	CNIConfDir string
	CNI        network.CNIOptions
	// Guard, if set, is called with a pod's addresses before each of its
	// containers starts; an error puts the start off.
	Guard GuardFunc
	// AppArmor tells that the host can enforce profiles.
	AppArmor bool
	// DropCapabilities are taken from containers that do not ask for them.
	DropCapabilities []string

	// TLS serves the agent's API on Kubelet's port; nil serves none.
	TLS *tls.Config
	// Serve completes the API's configuration: stats, gatherers, listeners.
	Serve serve.Config
	// DeadContainers bounds which dead containers stay; nil keeps one of each.
	DeadContainers *pressure.ContainerLimits
	// RuntimeCgroup is the runtime's, shown in stats; empty shows none.
	RuntimeCgroup string
	// CredentialProviders is the configuration of credential provider plugins, a
	// file or directory, and CredentialProviderDir where the plugins are; empty
	// for none.
	CredentialProviders, CredentialProviderDir string

	Log     *slog.Logger
	Metrics prometheus.Registerer
	Journal journal.Sink
	// OnNode, if set, is told of every new state of the Node object.
	OnNode func(*v1.Node)
	// Events records events; nil makes a recorder on Client.
	Events record.EventRecorder
}

func (c *Config) complete() error {
	if c.NodeName == "" || c.RuntimeEndpoint == "" || c.RootDir == "" || c.Kubelet == nil || c.Log == nil {
		return errors.New("configuring the agent: NodeName, RuntimeEndpoint, RootDir, Kubelet and Log are required")
	}
	if c.Journal == nil {
		c.Journal = journal.Discard
	}
	if c.DeadContainers == nil {
		c.DeadContainers = &pressure.ContainerLimits{PerContainer: 1, Total: -1}
	}
	if c.PodLogsDir == "" {
		c.PodLogsDir = c.Kubelet.PodLogsDir
	}
	if c.PodLogsDir == "" {
		c.PodLogsDir = "/var/log/pods"
	}
	c.Node.Identity.Name = c.NodeName
	if err := c.Node.Complete(c.Kubelet); err != nil {
		return err
	}
	for _, dir := range []string{filepath.Join(c.RootDir, "pods"), c.PodLogsDir, c.LogLinkDir} {
		if dir == "" {
			continue
		}
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return fmt.Errorf("making the agent's directories: %w", err)
		}
	}
	return nil
}

// Run runs the agent until ctx ends. Containers go on running after it and are
// found again by the next one.
func Run(ctx context.Context, cfg Config) error { return run(ctx, cfg, nil) }

// run also shows, if asked to, what tests look at.
func run(ctx context.Context, cfg Config, show func(inside)) error {
	if err := cfg.complete(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b, closeBase, err := openBase(ctx, &cfg)
	defer closeBase()
	if err != nil {
		return err
	}
	parts, in, err := wire(ctx, b)
	if in.volumes != nil {
		defer in.volumes.Close()
	}
	if err != nil {
		return err
	}
	if show != nil {
		show(in)
	}
	return runAll(ctx, cancel, parts)
}

// part is one long-running part of the agent.
type part struct {
	name string
	run  func(context.Context) error
}

// runAll runs all parts; the first that ends with an error of its own ends all.
func runAll(ctx context.Context, cancel context.CancelFunc, parts []part) error {
	var wg sync.WaitGroup
	var once sync.Once
	var first error
	for _, p := range parts {
		wg.Go(func() {
			err := p.run(ctx)
			if err != nil && ctx.Err() == nil {
				once.Do(func() { first = fmt.Errorf("running the agent's %s: %w", p.name, err) })
				cancel()
			}
		})
	}
	wg.Wait()
	if first != nil {
		return first
	}
	return ctx.Err()
}
