// Package workload is the list of workload controllers and what each is given.
package workload

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
	"github.com/berth-dev/berth/internal/control/workload/hpa"
	"github.com/berth-dev/berth/internal/control/workload/job"
	"github.com/berth-dev/berth/internal/control/workload/loadbalancer"
	"github.com/berth-dev/berth/internal/control/workload/namespace"
	"github.com/berth-dev/berth/internal/control/workload/provision"
	"github.com/berth-dev/berth/internal/control/workload/replicaset"
	"github.com/berth-dev/berth/internal/control/workload/resourceclaim"
	"github.com/berth-dev/berth/internal/control/workload/rootca"
	"github.com/berth-dev/berth/internal/control/workload/runtimeclass"
	"github.com/berth-dev/berth/internal/control/workload/serviceaccount"
	"github.com/berth-dev/berth/internal/control/workload/statefulset"
	"github.com/berth-dev/berth/internal/control/workload/ttl"
	"github.com/berth-dev/berth/internal/control/workload/volume"
	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/kube"
	"github.com/berth-dev/berth/internal/supervise"
)

// Config is what the controllers need. Client, Metadata, Discovery, Informers
// and Log are required.
type Config struct {
	// Client, Metadata and Discovery read as the process.
	Client    kubernetes.Interface
	Metadata  metadata.Interface
	Discovery discovery.DiscoveryInterface
	// Clients, if set, makes what each controller writes with; otherwise all
	// write as the process.
	Clients controller.Clients
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
	// ServingSigningCert and ServingSigningKey (PEM) sign what agents serve
	// with, by the rules of Serving; empty means SigningCert and SigningKey.
	ServingSigningCert, ServingSigningKey []byte
	Serving                               certificate.ServingRules

	// NoLoadBalancer leaves Services of type LoadBalancer to another party;
	// otherwise LoadBalancer says how they get addresses.
	NoLoadBalancer bool
	LoadBalancer   loadbalancer.Config

	// LocalVolumes asks the drivers of local volumes; nil asks through the API
	// server.
	LocalVolumes provision.Post

	// Enabled selects controllers; nil means all.
	Enabled controller.Enabled
}

// controllers is every workload controller, in the order they start. What they may
// write is what their account may: upstream's roles (system:controller:*) and,
// where ours writes in another way, berth:controller:* beside them.
func controllers(c *Config) []controller.Controller {
	return slices.Concat(clusterControllers(c), networkControllers(c), podControllers(), storageControllers(c), []controller.Controller{
		{Name: "garbage-collector-controller", Account: "generic-garbage-collector",
			Reads: "get,list,watch *.*", Writes: "delete,patch *.*",
			Run: func(ctx context.Context, e controller.Env) error { return garbage.Run(ctx, e, c.Discovery) }},
	})
}

// events is what it takes to record events.
const events = "\ncreate,patch events"

func clusterControllers(c *Config) []controller.Controller {
	return []controller.Controller{
		{Name: "namespace-controller", Account: "namespace-controller", Watches: "namespaces pods",
			Reads: "get namespaces\nlist *.*", Writes: "patch namespaces/status\nupdate namespaces/finalize\ndelete,deletecollection *.*",
			Run: func(ctx context.Context, e controller.Env) error { return namespace.Run(ctx, e, c.Discovery) }},
		{Name: "serviceaccount-controller", Account: "service-account-controller", Watches: "namespaces serviceaccounts",
			Writes: "create serviceaccounts", Run: serviceaccount.Run},
		{Name: "root-ca-certificate-publisher-controller", Account: "root-ca-cert-publisher", Watches: "namespaces configmaps",
			Writes: "create,patch configmaps", Run: func(ctx context.Context, e controller.Env) error {
				if len(c.RootCA) == 0 {
					return nil
				}
				return rootca.Run(ctx, e, c.RootCA, c.ServingSigningCert)
			}},
		{Name: "certificatesigningrequest-approving-controller", Account: "certificate-controller",
			Watches: "certificatesigningrequests.certificates.k8s.io",
			Reads:   "get,list nodes\nget leases.coordination.k8s.io\nlist configmaps\ncreate subjectaccessreviews.authorization.k8s.io",
			Writes: "create,patch configmaps\nupdate certificatesigningrequests.certificates.k8s.io/approval\n" +
				"approve signers.certificates.k8s.io = kubernetes.io/kube-apiserver-client-kubelet kubernetes.io/kubelet-serving",
			Run: func(ctx context.Context, e controller.Env) error { return certificate.RunApprover(ctx, e, c.Serving) }},
		{Name: "certificatesigningrequest-signing-controller", Account: "certificate-controller",
			Watches: "certificatesigningrequests.certificates.k8s.io", Reads: "list nodes configmaps",
			Writes: "create,patch configmaps\npatch certificatesigningrequests.certificates.k8s.io/status\n" +
				"sign signers.certificates.k8s.io = kubernetes.io/kube-apiserver-client kubernetes.io/kube-apiserver-client-kubelet " +
				"kubernetes.io/kubelet-serving kubernetes.io/legacy-unknown",
			Run: func(ctx context.Context, e controller.Env) error {
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
		{Name: "certificatesigningrequest-cleaner-controller", Account: "certificate-controller",
			Watches: "certificatesigningrequests.certificates.k8s.io",
			Writes:  "delete certificatesigningrequests.certificates.k8s.io", Run: certificate.RunCleaner},
		{Name: "podcertificaterequest-cleaner-controller", Account: "certificate-controller",
			Watches: "podcertificaterequests.certificates.k8s.io",
			Writes:  "delete podcertificaterequests.certificates.k8s.io", Run: certificate.RunPodCleaner},
		{Name: "resourcequota-controller", Account: "resourcequota-controller", Watches: "resourcequotas and what they count",
			Writes: "patch resourcequotas/status", Run: recount.Run},
		{Name: "token-cleaner-controller", Account: "token-cleaner", Reads: "list,watch secrets", Writes: "delete secrets",
			Run: bootstrap.RunCleaner},
		{Name: "bootstrap-signer-controller", Account: "bootstrap-signer", Reads: "list,watch secrets configmaps",
			Writes: "patch configmaps = cluster-info", Run: bootstrap.RunSigner},
	}
}

func networkControllers(c *Config) []controller.Controller {
	return []controller.Controller{
		{Name: "endpointslice-controller", Account: "endpointslice-controller",
			Watches: "services pods nodes endpointslices.discovery.k8s.io",
			Writes:  "create,delete,update endpointslices.discovery.k8s.io" + events, Run: endpoint.RunSlices},
		{Name: "endpoints-controller", Account: "endpoint-controller", Watches: "services pods endpoints",
			Writes: "create,delete,patch endpoints", Run: endpoint.RunLegacy},
		{Name: "endpointslice-mirroring-controller", Account: "endpointslicemirroring-controller",
			Watches: "services endpoints endpointslices.discovery.k8s.io",
			Writes:  "create,delete,patch endpointslices.discovery.k8s.io", Run: endpoint.RunMirror},
		{Name: "service-lb-controller", Alias: "service", Account: "service-controller",
			Watches: "services nodes pods endpointslices.discovery.k8s.io",
			Reads:   "list services",
			Writes:  "patch services/status" + events, Run: func(ctx context.Context, e controller.Env) error {
				if c.NoLoadBalancer {
					return nil
				}
				return loadbalancer.Run(ctx, e, c.LoadBalancer)
			}},
	}
}

func podControllers() []controller.Controller {
	return []controller.Controller{
		{Name: "replicaset-controller", Account: "replicaset-controller", Watches: "replicasets.apps pods namespaces",
			Reads:  "get replicasets.apps",
			Writes: "create,delete,patch pods\npatch replicasets.apps/status" + events, Run: replicaset.Run},
		{Name: "replicationcontroller-controller", Account: "replication-controller", Watches: "replicationcontrollers pods namespaces",
			Reads: "get replicationcontrollers", Writes: "create,delete,patch pods\npatch replicationcontrollers/status" + events,
			Run: replicaset.RunReplicationControllers},
		{Name: "deployment-controller", Account: "deployment-controller", Watches: "deployments.apps replicasets.apps pods",
			Reads:  "get deployments.apps replicasets.apps",
			Writes: "create,delete,patch replicasets.apps\npatch deployments.apps deployments.apps/status" + events,
			Run:    deployment.Run},
		{Name: "daemonset-controller", Account: "daemon-set-controller",
			Watches: "daemonsets.apps pods nodes controllerrevisions.apps namespaces",
			Reads:   "get daemonsets.apps controllerrevisions.apps",
			Writes: "create,delete,patch pods\ncreate,delete,patch controllerrevisions.apps\n" +
				"patch daemonsets.apps/status" + events, Run: daemonset.Run},
		{Name: "statefulset-controller", Account: "statefulset-controller",
			Watches: "statefulsets.apps pods controllerrevisions.apps persistentvolumeclaims namespaces",
			Reads:   "get statefulsets.apps controllerrevisions.apps",
			Writes: "create,delete,patch pods\ncreate,delete,patch controllerrevisions.apps\n" +
				"create,patch persistentvolumeclaims\npatch statefulsets.apps/status" + events, Run: statefulset.Run},
		{Name: "job-controller", Account: "job-controller", Watches: "jobs.batch pods namespaces", Reads: "get jobs.batch",
			Writes: "create,delete,patch pods\npatch jobs.batch/status" + events, Run: job.Run},
		{Name: "cronjob-controller", Account: "cronjob-controller", Watches: "cronjobs.batch jobs.batch",
			Writes: "create,delete jobs.batch\npatch cronjobs.batch/status" + events, Run: cronjob.Run},
		{Name: "ttl-after-finished-controller", Account: "ttl-after-finished-controller", Watches: "jobs.batch", Reads: "get jobs.batch",
			Writes: "delete jobs.batch", Run: ttl.Run},
		{Name: "disruption-controller", Account: "disruption-controller",
			Watches: "poddisruptionbudgets.policy pods deployments.apps replicasets.apps " +
				"statefulsets.apps replicationcontrollers", Reads: "get *.*/scale", Writes: "patch poddisruptionbudgets.policy/status",
			Run: disruption.Run},
		{Name: "horizontal-pod-autoscaler-controller", Alias: "horizontalpodautoscaling", Account: "horizontal-pod-autoscaler",
			Watches: "horizontalpodautoscalers.autoscaling pods",
			Reads:   "list *.metrics.k8s.io\nget,list *.custom.metrics.k8s.io *.external.metrics.k8s.io",
			Writes:  "get,update *.*/scale\npatch horizontalpodautoscalers.autoscaling/status" + events, Run: hpa.Run},
		{Name: "runtime-class-controller", Account: "runtime-class-publisher", Watches: "nodes", Reads: "get configmaps",
			Writes: "create runtimeclasses.node.k8s.io configmaps", Run: runtimeclass.Run},
		{Name: "resourceclaim-controller", Account: "resource-claim-controller",
			Watches: "pods resourceclaims.resource.k8s.io resourceclaimtemplates.resource.k8s.io",
			Reads:   "get pods",
			Writes: "create,delete,patch resourceclaims.resource.k8s.io\npatch resourceclaims.resource.k8s.io/status " +
				"resourceclaims.resource.k8s.io/binding pods/status" + events,
			Run: resourceclaim.Run},
	}
}

func storageControllers(c *Config) []controller.Controller {
	return []controller.Controller{
		{Name: "persistentvolume-binder-controller", Account: "persistent-volume-binder",
			Watches: "persistentvolumes persistentvolumeclaims storageclasses.storage.k8s.io",
			Reads:   "get persistentvolumeclaims",
			Writes:  "patch persistentvolumes persistentvolumes/status persistentvolumeclaims persistentvolumeclaims/status" + events,
			Run:     volume.RunBinder},
		{Name: "local-volume-controller", Account: "local-volume-provisioner",
			Watches: "persistentvolumeclaims persistentvolumes nodes storageclasses.storage.k8s.io " +
				"csinodes.storage.k8s.io csidrivers.storage.k8s.io csistoragecapacities.storage.k8s.io",
			Reads: "get persistentvolumes configmaps",
			Writes: "create nodes/localvolumes\ncreate,delete,patch persistentvolumes csistoragecapacities.storage.k8s.io\n" +
				"patch persistentvolumeclaims persistentvolumeclaims/status\ncreate csidrivers.storage.k8s.io " +
				"storageclasses.storage.k8s.io configmaps" + events,
			Run: func(ctx context.Context, e controller.Env) error { return provision.Run(ctx, e, c.LocalVolumes) }},
		{Name: "ephemeral-volume-controller", Account: "ephemeral-volume-controller", Watches: "pods persistentvolumeclaims",
			Writes: "create persistentvolumeclaims" + events, Run: volume.RunEphemeral},
		{Name: "persistentvolumeclaim-protection-controller", Account: "pvc-protection-controller", Watches: "persistentvolumeclaims pods",
			Reads: "list pods", Writes: "patch persistentvolumeclaims", Run: volume.RunClaimProtection},
		{Name: "persistentvolume-protection-controller", Account: "pv-protection-controller", Watches: "persistentvolumes",
			Writes: "patch persistentvolumes", Run: volume.RunVolumeProtection},
		{Name: "volumeattributesclass-protection-controller", Account: "volumeattributesclass-protection-controller",
			Watches: "volumeattributesclasses.storage.k8s.io persistentvolumeclaims persistentvolumes",
			Reads:   "list persistentvolumeclaims persistentvolumes", Writes: "patch volumeattributesclasses.storage.k8s.io",
			Run: volume.RunAttributesProtection},
		{Name: "persistentvolume-attach-detach-controller", Account: "attachdetach-controller",
			Watches: "nodes pods persistentvolumeclaims persistentvolumes " +
				"csidrivers.storage.k8s.io volumeattachments.storage.k8s.io csinodes.storage.k8s.io",
			Writes: "patch nodes/status\ncreate,delete volumeattachments.storage.k8s.io" + events, Run: attach.Run},
	}
}

// List declares every workload controller; what it returns does not run.
func List() []controller.Controller { return controllers(&Config{}) }

// Run runs the enabled controllers until the context ends. An error means that
// one could not start, for a reason that does not pass by itself.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Client == nil || cfg.Metadata == nil || cfg.Discovery == nil || cfg.Informers == nil || cfg.Log == nil {
		return fmt.Errorf("workload controllers: Client, Metadata, Discovery, Informers and Log must be set")
	}
	metrics, err := controller.NewMetrics(cfg.Metrics)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the recorders
	base := controller.Env{Client: cfg.Client, Reader: cfg.Client, Metadata: cfg.Metadata, Informers: cfg.Informers, Log: cfg.Log,
		Metrics:    metrics,
		Registerer: cfg.Metrics, Journal: cfg.Journal, Recorders: kube.NewRecorders(ctx)}
	var parts []supervise.Part
	for _, c := range controllers(&cfg) {
		if cfg.Enabled != nil && !cfg.Enabled(c.Name) {
			continue
		}
		parts = append(parts, supervise.Part{Name: c.Name, Run: c.Start(base, cfg.Clients)})
	}
	return supervise.Run(ctx, cfg.Log, parts...)
}
