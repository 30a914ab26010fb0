package api

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options"

	"github.com/berth-dev/berth/internal/control/admit"
	"github.com/berth-dev/berth/internal/control/auth"
)

// AuditLogDefault stands for the audit log among the logs of the cluster; an
// empty path is no log.
const AuditLogDefault = "default"

// Options are an administrator's choices about the server, with the flags of a
// kube-apiserver.
type Options struct {
	Admission *options.AdmissionOptions
	Audit     *options.AuditOptions
	Auth      *auth.Options
	// EncryptionConfig is a file with an EncryptionConfiguration; it is followed.
	// Empty: nothing is encrypted.
	EncryptionConfig string
	// Fairness queues requests by priority and sender.
	Fairness bool
	// WebhookRedirects lets webhooks send the server to other addresses
	// (CVE-2020-8561).
	WebhookRedirects bool
}

// NewOptions returns the defaults.
func NewOptions() *Options {
	o := &Options{Admission: admit.NewOptions(), Audit: options.NewAuditOptions(), Auth: auth.NewOptions(), Fairness: true}
	log := &o.Audit.LogOptions
	// A request does not wait for the disk, and the files take 1.1 GB at most.
	log.Path, log.MaxAge, log.MaxBackups, log.MaxSize = AuditLogDefault, 30, 10, 100
	// Waking the writer for each event costs a request more than all else of
	// the audit does (BenchmarkCreatePod). A full buffer (10,000 events) is
	// told in the log and in apiserver_audit_error_total; a server that ends
	// writes what it holds, one that is killed loses a second.
	log.BatchOptions.Mode = options.ModeBatch
	log.BatchOptions.BatchConfig.MaxBatchSize, log.BatchOptions.BatchConfig.MaxBatchWait = 400, time.Second
	return o
}

// AddFlags adds the flags; names and meaning are kube-apiserver's.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	o.Admission.AddFlags(f)
	o.Audit.AddFlags(f)
	o.Auth.AddFlags(f)
	f.StringVar(&o.EncryptionConfig, "encryption-provider-config", "",
		"file with an EncryptionConfiguration for what is stored; changes of it take effect at once (default for new clusters: Secrets "+
			"under a key in the data directory)")
	f.BoolVar(&o.Fairness, "enable-priority-and-fairness", o.Fairness,
		"queue requests by priority and sender (FlowSchemas) instead of only bounding how many run")
	f.BoolVar(&o.WebhookRedirects, "follow-webhook-redirects", false,
		"let admission webhooks redirect the API server to other addresses (CVE-2020-8561)")
}

// Validate says what cannot work.
func (o *Options) Validate() error {
	errs := append(o.Admission.Validate(), o.Audit.Validate()...)
	return errors.Join(append(errs, o.Auth.Validate()...)...)
}

// builtInAudit is the policy where no file is given: who did what to which
// object, never what is in it. What comes at high rate and tells nothing is
// left out: health checks, the server's own calls, renewed leases, events, and
// what nodes and controllers read.
const builtInAudit = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: ["/healthz*", "/livez*", "/readyz*", "/version", "/openapi/*", "/api", "/api/*", "/apis", "/apis/*"]
- level: None
  users: ["system:apiserver"]
- level: Metadata
  resources:
  - {group: "", resources: ["secrets", "configmaps", "serviceaccounts/token"]}
  - {group: "authentication.k8s.io", resources: ["tokenreviews"]}
- level: None
  resources:
  - {group: "", resources: ["events"]}
  - {group: "events.k8s.io", resources: ["events"]}
- level: None
  verbs: ["get", "update", "patch"]
  resources:
  - {group: "coordination.k8s.io", resources: ["leases"]}
- level: None
  userGroups: ["system:nodes", "system:serviceaccounts:kube-system"]
  verbs: ["get", "list", "watch"]
- level: None
  users: ["system:kube-proxy", "system:kube-scheduler", "system:kube-controller-manager"]
  verbs: ["get", "list", "watch"]
- level: Metadata
`

// audit sets where requests are recorded.
func (o *Options) audit(conf *genericapiserver.Config) error {
	if o.Audit.LogOptions.Path == AuditLogDefault {
		return errors.New("setting up the audit log: its default place is not known here: give --audit-log-path")
	}
	chosen := *o.Audit
	if chosen.PolicyFile == "" {
		// The library reads policies from files only.
		f, err := os.CreateTemp("", "berth-audit-policy-")
		if err != nil {
			return fmt.Errorf("setting up the audit log: %w", err)
		}
		defer os.Remove(f.Name())
		_, err = f.WriteString(builtInAudit)
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("setting up the audit log: %w", err)
		}
		chosen.PolicyFile = f.Name()
	}
	if err := chosen.ApplyTo(conf); err != nil {
		return fmt.Errorf("setting up the audit log: %w", err)
	}
	return nil
}
