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
	"github.com/berth-dev/berth/internal/supervise"
)

// GuardFunc makes a pod with these addresses safe to run.
type GuardFunc = start.GuardFunc

// API is how the agent reaches the cluster's API server.
type API struct {
	// Client should have no limit on its request rate: the agent bounds itself,
	// and a limit would delay pods.
	Client kubernetes.Interface
	// Leases should have a connection of its own; nil uses Client.
	Leases coordination.LeasesGetter
	// Certificate is what the clients show to the server, for the metric of its
	// lifetime; may be nil.
	Certificate func() *tls.Certificate
	// Events records events; nil makes a recorder on Client.
	Events record.EventRecorder
}

// PodNetwork is the bridge network the agent makes from the Node's pod CIDRs.
type PodNetwork struct {
	// ConfDir is where the runtime looks for CNI configurations; empty leaves
	// the pod network to others.
	ConfDir string
	CNI     network.CNIOptions
}

// CredentialPlugins are the image credential provider plugins of the host.
type CredentialPlugins struct {
	// Config is their configuration, a file or a directory of files; empty is
	// none.
	Config string
	// Dir is where the plugins are.
	Dir string
}

// Config is what the agent runs with. Node.Identity.Name, RootDir, Kubelet and
// Log are required.
type Config struct {
	// Kubelet is the effective configuration with defaults filled in: it names
	// the CRI socket and the directory of the pods' logs.
	Kubelet *kubeletv1beta1.KubeletConfiguration
	// Node shapes the Node object; its identity names the Node this agent is.
	Node node.Settings
	// API is the API server; without a client static pods run alone.
	API API
	// RootDir holds pods, volumes and checkpoints.
	RootDir string
	// LogLinkDir gets a link per container log (/var/log/containers); empty for
	// none.
	LogLinkDir string
	// Network is the pod network, if the agent makes it.
	Network PodNetwork
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
	// Credentials are the plugins that give credentials for images.
	Credentials CredentialPlugins

	Log     *slog.Logger
	Metrics prometheus.Registerer
	Journal journal.Sink
	// OnNode, if set, gets every new state of the Node object.
	OnNode func(*v1.Node)
}

// nodeName is the Node this agent is.
func (c *Config) nodeName() string { return c.Node.Identity.Name }

func (c *Config) complete() error {
	if c.nodeName() == "" || c.RootDir == "" || c.Kubelet == nil || c.Log == nil {
		return errors.New("configuring the agent: Node.Identity.Name, RootDir, Kubelet and Log are required")
	}
	if c.Kubelet.ContainerRuntimeEndpoint == "" || c.Kubelet.PodLogsDir == "" {
		return errors.New("configuring the agent: containerRuntimeEndpoint and podLogsDir of Kubelet are required")
	}
	if c.Journal == nil {
		c.Journal = journal.Discard
	}
	if c.DeadContainers == nil {
		c.DeadContainers = &pressure.ContainerLimits{PerContainer: 1, Total: -1}
	}
	if err := c.Node.Complete(c.Kubelet); err != nil {
		return err
	}
	for _, dir := range []string{filepath.Join(c.RootDir, "pods"), c.Kubelet.PodLogsDir, c.LogLinkDir} {
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
	group := supervise.New(ctx, cfg.Log, supervise.AtOnce)
	defer group.Stop()
	b, closeBase, err := openBase(group.Context(), &cfg)
	defer closeBase()
	if err != nil {
		return err
	}
	parts, in, err := wire(group.Context(), b)
	if in.volumes != nil {
		defer in.volumes.Close()
	}
	if err != nil {
		return err
	}
	if show != nil {
		show(in)
	}
	for _, p := range parts {
		group.Start(supervise.Part{Name: "the agent's " + p.name, Run: p.run})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// part is one long-running part of the agent; its failure ends the agent.
type part struct {
	name string
	run  func(context.Context) error
}
