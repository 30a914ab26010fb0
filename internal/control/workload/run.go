// Package workload is the list of workload controllers and what each is given.
package workload

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"

	"github.com/berth-dev/berth/internal/control/admit/quota/recount"
	"github.com/berth-dev/berth/internal/control/workload/attach"
	"github.com/berth-dev/berth/internal/control/workload/bootstrap"
	"github.com/berth-dev/berth/internal/control/workload/certificate"
	"github.com/berth-dev/berth/internal/control/workload/cronjob"
	"github.com/berth-dev/berth/internal/control/workload/daemonset"
	"github.com/berth-dev/berth/internal/control/workload/deployment"
	"github.com/berth-dev/berth/internal/control/workload/disruption"
	"github.com/berth-dev/berth/internal/control/workload/endpoint"
	"github.com/berth-dev/berth/internal/control/workload/garbage"
	"github.com/berth-dev/berth/internal/control/workload/job"
	"github.com/berth-dev/berth/internal/control/workload/namespace"
	"github.com/berth-dev/berth/internal/control/workload/replicaset"
	"github.com/berth-dev/berth/internal/control/workload/resourceclaim"
	"github.com/berth-dev/berth/internal/control/workload/rootca"
	"github.com/berth-dev/berth/internal/control/workload/serviceaccount"
	"github.com/berth-dev/berth/internal/control/workload/shell"
	"github.com/berth-dev/berth/internal/control/workload/statefulset"
	"github.com/berth-dev/berth/internal/control/workload/ttl"
	"github.com/berth-dev/berth/internal/control/workload/volume"
	"github.com/berth-dev/berth/internal/journal"
)

// Config is what the controllers need. Client, Metadata, Discovery, Informers
// and Log are required.
type Config struct {
	Client    kubernetes.Interface
	Metadata  metadata.Interface
	Discovery discovery.DiscoveryInterface
	// Informers is shared with every other role of the process; a transform
	// that drops managed fields saves memory and disturbs nothing here.
	Informers informers.SharedInformerFactory
	Log       *slog.Logger
	// Metrics and Journal may be nil.
	Metrics prometheus.Registerer
	Journal journal.Sink

	// RootCA is the PEM bundle published to pods; empty leaves the publisher
	// out.
	RootCA []byte
	// SigningCert and SigningKey (PEM) sign certificate requests; empty leaves
	// the signer out. SigningMost is the longest life of a certificate, 0 for
	// a year.
	SigningCert, SigningKey []byte
	SigningMost             time.Duration
	// ServingSigningCert and ServingSigningKey (PEM) sign what agents serve with, by the rules of Serving; empty means
	// SigningCert and SigningKey.
	ServingSigningCert, ServingSigningKey []byte
	Serving                               certificate.ServingRules

	// Enable selects controllers as --controllers does upstream: "*" is all,
	// "name" adds one, "-name" leaves one out. Empty means all.
	Enable []string
}

// controller is one line of the list.
type controller struct {
	name string
	run  func(context.Context, shell.Env, *Config) error
}

// plain wraps a controller that needs nothing but its environment.
func plain(f func(context.Context, shell.Env) error) func(context.Context, shell.Env, *Config) error {
	return func(ctx context.Context, e shell.Env, _ *Config) error { return f(ctx, e) }
}

// controllers is every workload controller, by its upstream name.
var controllers = []controller{
	{"namespace-controller", func(ctx context.Context, e shell.Env, c *Config) error {
		return namespace.Run(ctx, e, c.Metadata, c.Discovery)
	}},
	{"serviceaccount-controller", plain(serviceaccount.Run)},
	{"root-ca-certificate-publisher-controller", func(ctx context.Context, e shell.Env, c *Config) error {
		if len(c.RootCA) == 0 {
			return nil
		}
		return rootca.Run(ctx, e, c.RootCA)
	}},
	{"certificatesigningrequest-approving-controller", func(ctx context.Context, e shell.Env, c *Config) error {
		return certificate.RunApprover(ctx, e, c.Serving)
	}},
	{"certificatesigningrequest-signing-controller", func(ctx context.Context, e shell.Env, c *Config) error {
		if len(c.SigningCert) == 0 {
			return nil
		}
		ca, err := certificate.NewCA(c.SigningCert, c.SigningKey, c.SigningMost)
		if err != nil {
			return err
		}
		serving := ca
		if len(c.ServingSigningCert) > 0 {
			if serving, err = certificate.NewCA(c.ServingSigningCert, c.ServingSigningKey, c.SigningMost); err != nil {
				return err
			}
		}
		return certificate.RunSigner(ctx, e, ca, serving, c.Serving)
	}},
	{"certificatesigningrequest-cleaner-controller", plain(certificate.RunCleaner)},
	{"podcertificaterequest-cleaner-controller", plain(certificate.RunPodCleaner)},
	{"resourcequota-controller", func(ctx context.Context, e shell.Env, _ *Config) error {
		return recount.Run(ctx, recount.Config{Client: e.Client, Informers: e.Informers, Log: e.Log, Journal: e.Journal})
	}},
	{"endpointslice-controller", plain(endpoint.RunSlices)},
	{"endpoints-controller", plain(endpoint.RunLegacy)},
	{"endpointslice-mirroring-controller", plain(endpoint.RunMirror)},
	{"replicaset-controller", plain(replicaset.Run)},
	{"replicationcontroller-controller", plain(replicaset.RunReplicationControllers)},
	{"deployment-controller", plain(deployment.Run)},
	{"daemonset-controller", plain(daemonset.Run)},
	{"statefulset-controller", plain(statefulset.Run)},
	{"job-controller", plain(job.Run)},
	{"cronjob-controller", plain(cronjob.Run)},
	{"ttl-after-finished-controller", plain(ttl.Run)},
	{"disruption-controller", plain(disruption.Run)},
	{"persistentvolume-binder-controller", plain(volume.RunBinder)},
	{"ephemeral-volume-controller", plain(volume.RunEphemeral)},
	{"resourceclaim-controller", plain(resourceclaim.Run)},
	{"persistentvolumeclaim-protection-controller", plain(volume.RunClaimProtection)},
	{"persistentvolume-protection-controller", plain(volume.RunVolumeProtection)},
	{"volumeattributesclass-protection-controller", plain(volume.RunAttributesProtection)},
	{"persistentvolume-attach-detach-controller", plain(attach.Run)},
	{"token-cleaner-controller", plain(bootstrap.RunCleaner)},
	{"bootstrap-signer-controller", plain(bootstrap.RunSigner)},
	{"garbage-collector-controller", func(ctx context.Context, e shell.Env, c *Config) error {
		return garbage.Run(ctx, e, c.Metadata, c.Discovery)
	}},
}

// Names lists the controllers in order.
func Names() []string {
	out := make([]string, len(controllers))
	for i, c := range controllers {
		out[i] = c.name
	}
	return out
}

// Run runs the enabled controllers until the context ends. An error means that
// one could not start, for a reason that does not pass by itself.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Client == nil || cfg.Metadata == nil || cfg.Discovery == nil || cfg.Informers == nil || cfg.Log == nil {
		return fmt.Errorf("workload controllers: Client, Metadata, Discovery, Informers and Log must be set")
	}
	enabled, err := selected(cfg.Enable)
	if err != nil {
		return err
	}
	if cfg.Journal == nil {
		cfg.Journal = journal.Discard
	}
	events := shell.StartEvents(ctx, cfg.Client)
	defer events.Shutdown()
	base := shell.Env{Client: cfg.Client, Informers: cfg.Informers, Log: cfg.Log, Metrics: shell.NewMetrics(cfg.Metrics),
		Journal: cfg.Journal, Broadcaster: events}
	group, ctx := errgroup.WithContext(ctx)
	for _, c := range enabled {
		group.Go(func() error {
			if err := c.run(ctx, base.Named(c.name), &cfg); err != nil {
				return fmt.Errorf("running %s: %w", c.name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// selected applies the Enable list; an unknown name is an error that lists the
// known ones.
func selected(enable []string) ([]controller, error) {
	names := Names()
	on := map[string]bool{}
	all := len(enable) == 0
	for _, e := range enable {
		if e == "*" {
			all = true
		} else if n := strings.TrimPrefix(e, "-"); !slices.Contains(names, n) {
			return nil, fmt.Errorf("controllers: %q is not one of %s", n, strings.Join(names, ", "))
		}
	}
	for _, n := range names {
		on[n] = all
	}
	for _, e := range enable {
		if n, off := strings.CutPrefix(e, "-"); e != "*" {
			on[n] = !off
		}
	}
	var out []controller
	for _, c := range controllers {
		if on[c.name] {
			out = append(out, c)
		}
	}
	return out, nil
}
