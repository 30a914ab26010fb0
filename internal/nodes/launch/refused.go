package launch

import (
	"errors"
	"strings"

	"github.com/spf13/pflag"
)

// elsewhere is why flags of controllers that this command does not run are
// refused.
const elsewhere = "it belongs to a controller that berth controllers does not run: leave it with the controller manager that does"

// foreign are the flags of kube-controller-manager and cloud-controller-manager
// that this command does not have, by why it does not.
var foreign = map[string]string{
	elsewhere: `attach-detach-reconcile-sync-period disable-attach-detach-reconcile-sync disable-force-detach-on-timeout
		cluster-signing-cert-file cluster-signing-duration cluster-signing-key-file
		cluster-signing-kube-apiserver-client-cert-file cluster-signing-kube-apiserver-client-key-file
		cluster-signing-kubelet-client-cert-file cluster-signing-kubelet-client-key-file
		cluster-signing-kubelet-serving-cert-file cluster-signing-kubelet-serving-key-file
		cluster-signing-legacy-unknown-cert-file cluster-signing-legacy-unknown-key-file
		concurrent-cron-job-syncs concurrent-daemonset-syncs concurrent-deployment-syncs concurrent-endpoint-syncs ` +
		`concurrent-ephemeralvolume-syncs
		concurrent-gc-syncs concurrent-horizontal-pod-autoscaler-syncs concurrent-job-syncs concurrent-namespace-syncs concurrent-rc-syncs
		concurrent-replicaset-syncs concurrent-resource-claim-syncs concurrent-device-taint-eviction-syncs concurrent-resource-quota-syncs
		concurrent-service-endpoint-syncs concurrent-service-syncs concurrent-serviceaccount-token-syncs concurrent-statefulset-syncs
		concurrent-ttl-after-finished-syncs concurrent-validating-admission-policy-status-syncs
		enable-dynamic-provisioning enable-garbage-collector enable-hostpath-provisioner endpoint-updates-batch-period ` +
		`endpointslice-updates-batch-period
		flex-volume-plugin-dir horizontal-pod-autoscaler-cpu-initialization-period horizontal-pod-autoscaler-downscale-stabilization
		horizontal-pod-autoscaler-initial-readiness-delay horizontal-pod-autoscaler-sync-period horizontal-pod-autoscaler-tolerance
		legacy-service-account-token-clean-up-period max-endpoints-per-slice mirroring-concurrent-service-endpoint-syncs
		mirroring-endpointslice-updates-batch-period mirroring-max-endpoints-per-subset namespace-sync-period
		pv-recycler-increment-timeout-nfs pv-recycler-minimum-timeout-hostpath pv-recycler-minimum-timeout-nfs
		pv-recycler-pod-template-filepath-hostpath pv-recycler-pod-template-filepath-nfs pv-recycler-timeout-increment-hostpath
		pvclaimbinder-sync-period resource-quota-sync-period root-ca-file service-account-private-key-file`,
	"berth controllers has no feature gates: what is finished is on": `feature-gates`,
	"berth controllers is of one version and emulates no other": `emulated-version emulation-forward-compatible ` +
		`min-compatibility-version`,
	"there are no cloud webhooks here": `webhooks webhook-bind-address webhook-cert-dir ` +
		`webhook-secure-port webhook-tls-cert-file webhook-tls-private-key-file`,
	"messages go to standard error in one stream: use -v and --logging-format": `vmodule log-text-split-stream log-text-info-buffer-size
		log-json-split-stream log-json-info-buffer-size`,
	"the time since when a node fails is counted by deadlines: use --node-monitor-grace-period, " +
		"and tolerationSeconds of pods": `pod-eviction-timeout`,
	"NoExecute taints are always evicted by: leave out taint-eviction-controller " +
		"of --controllers to stop it": `enable-taint-manager`,
	"it was removed: use --node-eviction-rate": `deleting-pods-burst deleting-pods-qps register-retry-count`,
}

// refuse declares flags that say why they may not be set.
func refuse(fs *pflag.FlagSet) {
	for why, names := range foreign {
		for _, name := range strings.Fields(names) {
			if fs.Lookup(name) == nil {
				f := fs.VarPF(refused(why), name, "", "")
				f.Hidden, f.NoOptDefVal = true, "true"
			}
		}
	}
}

// refused is a flag that may not be set, and why.
type refused string

func (r refused) Set(string) error { return errors.New(string(r)) }
func (r refused) String() string   { return "" }
func (r refused) Type() string     { return "string" }
