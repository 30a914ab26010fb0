// Package launch turns a configuration into a running agent: it prepares the
// host, gets credentials, and starts the agent with them.
package launch

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // rest_client_* metrics

	"github.com/berth-dev/berth/internal/agent"
	"github.com/berth-dev/berth/internal/agent/certs"
	"github.com/berth-dev/berth/internal/agent/config"
	"github.com/berth-dev/berth/internal/agent/node"
	"github.com/berth-dev/berth/internal/agent/pressure"
	"github.com/berth-dev/berth/internal/agent/serve"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/supervise"
)

// Config is what launching needs beside the agent's configuration.
type Config struct {
	// Effective is the configuration, with the flags: they name the kubeconfig,
	// the one to bootstrap with, and the directory of certificates.
	Effective *config.Effective
	// Files are certificates that another program makes and renews.
	Files    Files
	Log      *slog.Logger
	LogLevel *slog.LevelVar
	// Version is the Kubernetes version the agent speaks.
	Version string
	Journal journal.Sink
	// Metrics are the agent's; nil makes a registry.
	Metrics Registry
	// BesideServer is for an agent whose process also runs an API server: the
	// metrics of libraries tell of both, so that the agent shows none of them and
	// counts its requests itself.
	BesideServer bool
	// LogLinkDir gets a link per container log; empty for none.
	LogLinkDir string
	// Network is for an agent that makes its pod network itself; empty leaves
	// that to others.
	Network agent.PodNetwork
	// Guard and DropCapabilities are the agent's.
	Guard            agent.GuardFunc
	DropCapabilities []string
	// LocalVolumes answers the calls of the cluster's controller to the driver of
	// local volumes; nil where this node has none.
	LocalVolumes http.Handler
	// Images answers calls to the image store of the runtime; nil where it takes
	// no archives.
	Images http.Handler
}

// Files are certificates in files, which are read again when they change. What
// the configuration asks for comes first: rotateCertificates before the client's,
// tlsCertFile and serverTLSBootstrap before the serving one. Empty fields leave
// it to the kubeconfig and to a self-signed certificate.
type Files struct {
	ClientCert, ClientKey   string
	ServingCert, ServingKey string
}

// HostLogLinks is where collectors of logs look for those of containers.
const HostLogLinks = "/var/log/containers"

// Registry is where metrics are registered and gathered.
type Registry interface {
	prometheus.Registerer
	prometheus.Gatherer
}

// Run runs the agent until the context ends.
func Run(ctx context.Context, cfg Config) error {
	flags := &cfg.Effective.Agent
	for _, note := range cfg.Effective.Notes {
		cfg.Log.Info(note)
	}
	if _, err := identity(cfg); err != nil { // before waiting for the lock
		return err
	}
	unlock, contended, err := lock(flags.LockFile, flags.ExitOnLockContention)
	if err != nil {
		return err
	}
	defer unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if contended != nil {
		go func() {
			select {
			case <-contended:
				cancel(fmt.Errorf("another process wants %s", flags.LockFile))
			case <-ctx.Done():
			}
		}()
	}
	if err := prepare(cfg.Effective.Kubelet, cfg.Log, "/"); err != nil {
		return err
	}
	out, parts, err := Build(ctx, cfg)
	if err != nil {
		return err
	}
	return run(ctx, cfg.Log, append(parts, func(ctx context.Context) error { return agent.Run(ctx, out) }))
}

// Build makes the agent's configuration, and what must run beside the agent to
// keep its credentials current. It is the only place that does: whatever starts
// an agent (up, join, agent) differs in Config alone. It changes nothing on the
// host but files of certificates, and waits for an API server only if it must
// ask for the first one.
func Build(ctx context.Context, cfg Config) (agent.Config, []func(context.Context) error, error) {
	k, flags := cfg.Effective.Kubelet, &cfg.Effective.Agent
	id, err := identity(cfg)
	if err != nil {
		return agent.Config{}, nil, err
	}
	settings, err := node.SettingsFor(k, id, cfg.Version)
	if err != nil {
		return agent.Config{}, nil, err
	}
	registry := cfg.Metrics
	if registry == nil {
		own := prometheus.NewRegistry()
		own.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
		registry = own
	}
	out := agent.Config{
		Kubelet: k, Node: settings, RootDir: flags.RootDir, LogLinkDir: cfg.LogLinkDir,
		Credentials:   agent.CredentialPlugins{Config: flags.ImageCredentialConfig, Dir: flags.ImageCredentialDir},
		RuntimeCgroup: flags.RuntimeCgroups, DeadContainers: &pressure.ContainerLimits{
			MinimumAge: flags.MinimumContainerTTL, PerContainer: int(flags.MaxDeadPerContainer), Total: int(flags.MaxDeadContainers),
		},
		Network: cfg.Network, Guard: cfg.Guard, AppArmor: appArmor("/"),
		DropCapabilities: cfg.DropCapabilities,
		Log:              cfg.Log, Metrics: registry, Journal: cfg.Journal,
	}
	out.Serve.Calls = serve.Calls{LocalVolumes: cfg.LocalVolumes, Images: cfg.Images}
	out.Serve.Gather = registry
	if !cfg.BesideServer {
		out.Serve.Gather = prometheus.Gatherers{registry, legacyregistry.DefaultGatherer}
	}
	out.Serve.LogLevel, out.Serve.Flags = cfg.LogLevel, cfg.Effective.Flags
	c := &credentials{cfg: cfg, id: id}
	if err := c.fill(ctx, &out); err != nil {
		return agent.Config{}, nil, err
	}
	return out, c.parts, nil
}

// run runs all parts; the first that fails ends all.
func run(ctx context.Context, log *slog.Logger, parts []func(context.Context) error) error {
	var list []supervise.Part
	for _, run := range parts {
		list = append(list, supervise.Part{Run: run})
	}
	if err := supervise.Run(ctx, log, list...); err != nil {
		return certs.Explain(err)
	}
	return nil
}

// identity is who this node is, from the flags.
func identity(cfg Config) (node.Identity, error) {
	k, flags := cfg.Effective.Kubelet, &cfg.Effective.Agent
	hostname, err := os.Hostname()
	if err != nil {
		return node.Identity{}, fmt.Errorf("reading the host name: %w", err)
	}
	id := node.Identity{Taints: k.RegisterWithTaints, ProviderID: k.ProviderID, AttachDetach: k.EnableControllerAttachDetach == nil ||
		*k.EnableControllerAttachDetach}
	if id.Name, err = node.Name(hostname, flags.HostnameOverride); err != nil {
		return id, err
	}
	if id.Labels, err = node.ParseLabels(flags.NodeLabels); err != nil {
		return id, err
	}
	var skipped []string
	if id.NodeIPs, skipped, err = node.ParseNodeIPs(flags.NodeIP); err != nil {
		return id, err
	}
	if len(skipped) > 0 {
		cfg.Log.Warn("--node-ip has entries that are no addresses", "entries", skipped)
	}
	switch flags.CloudProvider {
	case "":
	case "external":
		id.ExternalCloud = true
	default:
		return id, fmt.Errorf("reading --cloud-provider: %q is not supported; allowed are \"\" and external", flags.CloudProvider)
	}
	return id, nil
}

func appArmor(root string) bool {
	text, err := os.ReadFile(filepath.Join(root, "sys/module/apparmor/parameters/enabled"))
	return err == nil && strings.HasPrefix(string(text), "Y")
}
