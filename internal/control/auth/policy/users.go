package policy

// Verb sets that recur.
const (
	read  = "get,list,watch"
	write = "create,delete,deletecollection,patch,update"
	event = "create,patch,update events events.events.k8s.io\n"
)

// entry is one role as text. The labels beside the bootstrapping one matter
// for aggregation only.
type entry struct {
	name, rules string
	label       string   // aggregate-to-<label>, if any
	sumOf       string   // aggregationRule selecting aggregate-to-<sumOf>, if any
	subjects    []string // of the binding with the role's name; nil: no binding
}

// Subjects are written "user:x", "group:x" or "account:namespace/x"; no one
// marks a binding that exists for others to add to.
var nobody = []string{}

// userRoles are the cluster roles that people, nodes and add-ons hold.
var userRoles = []entry{
	{name: "cluster-admin", subjects: []string{"group:system:masters"}, rules: `
		* *.*
		* /**`},
	{name: "system:discovery", subjects: []string{"group:system:authenticated"}, rules: `
		get /livez /readyz /healthz /version /version/ /openapi /openapi/* /api /api/* /apis /apis/*`},
	{name: "system:monitoring", subjects: []string{"group:system:monitoring"}, rules: `
		get /metrics /metrics/slis /livez /readyz /healthz /livez/* /readyz/* /healthz/*`},
	{name: "system:basic-user", subjects: []string{"group:system:authenticated"}, rules: `
		create selfsubjectaccessreviews.authorization.k8s.io selfsubjectrulesreviews.authorization.k8s.io
		create selfsubjectreviews.authentication.k8s.io`},
	{name: "system:public-info-viewer", subjects: []string{"group:system:authenticated", "group:system:unauthenticated"}, rules: `
		get /livez /readyz /healthz /version /version/`},
	{name: "system:service-account-issuer-discovery", subjects: []string{"group:system:serviceaccounts"}, rules: `
		get /.well-known/openid-configuration /.well-known/openid-configuration/ /openid/v1/jwks /openid/v1/jwks/`},

	{name: "admin", sumOf: "admin"},
	{name: "edit", sumOf: "edit", label: "admin"},
	{name: "view", sumOf: "view", label: "edit"},
	{name: "system:aggregate-to-admin", label: "admin", rules: `
		create localsubjectaccessreviews.authorization.k8s.io
		` + write + "," + read + ` roles.rbac.authorization.k8s.io rolebindings.rbac.authorization.k8s.io`},
	{name: "system:aggregate-to-edit", label: "edit", rules: `
		` + read + ` pods/attach pods/exec pods/portforward pods/proxy secrets services/proxy
		impersonate serviceaccounts
		` + write + ` pods pods/attach pods/exec pods/portforward pods/proxy
		create pods/eviction serviceaccounts/token
		` + write + ` configmaps events persistentvolumeclaims replicationcontrollers replicationcontrollers/scale secrets ` +
		`serviceaccounts services services/proxy
		` + write + ` daemonsets.apps deployments.apps deployments.apps/rollback deployments.apps/scale replicasets.apps ` +
		`replicasets.apps/scale statefulsets.apps statefulsets.apps/scale
		` + write + ` horizontalpodautoscalers.autoscaling cronjobs.batch jobs.batch poddisruptionbudgets.policy
		` + write + ` ingresses.networking.k8s.io networkpolicies.networking.k8s.io
		` + write + "," + read + ` leases.coordination.k8s.io
		` + write + ` resourceclaims.resource.k8s.io resourceclaimtemplates.resource.k8s.io`},
	{name: "system:aggregate-to-view", label: "view", rules: `
		` + read + ` configmaps endpoints persistentvolumeclaims persistentvolumeclaims/status pods replicationcontrollers ` +
		`replicationcontrollers/scale serviceaccounts services services/status
		` + read + ` bindings events limitranges namespaces/status pods/log pods/status replicationcontrollers/status resourcequotas ` +
		`resourcequotas/status
		` + read + ` namespaces endpointslices.discovery.k8s.io
		` + read + ` controllerrevisions.apps daemonsets.apps daemonsets.apps/status deployments.apps deployments.apps/scale ` +
		`deployments.apps/status replicasets.apps replicasets.apps/scale replicasets.apps/status statefulsets.apps ` +
		`statefulsets.apps/scale statefulsets.apps/status
		` + read + ` horizontalpodautoscalers.autoscaling horizontalpodautoscalers.autoscaling/status
		` + read + ` cronjobs.batch cronjobs.batch/status jobs.batch jobs.batch/status
		` + read + ` poddisruptionbudgets.policy poddisruptionbudgets.policy/status
		` + read + ` ingresses.networking.k8s.io ingresses.networking.k8s.io/status networkpolicies.networking.k8s.io
		` + read + ` resourceclaims.resource.k8s.io resourceclaims.resource.k8s.io/status resourceclaimtemplates.resource.k8s.io`},

	// metrics-server installs a role of this name; here the group is built in.
	{name: "system:aggregated-metrics-reader", label: "view", rules: `
		` + read + ` nodes.metrics.k8s.io pods.metrics.k8s.io`},

	{name: "system:node", subjects: nobody, rules: nodeRules},
	{name: "system:node-bootstrapper", rules: `
		create,get,list,watch certificatesigningrequests.certificates.k8s.io`},
	{name: "system:node-proxier", subjects: []string{"user:system:kube-proxy"}, rules: `
		list,watch services endpoints
		get,list,watch nodes
		` + event + `
		list,watch endpointslices.discovery.k8s.io servicecidrs.networking.k8s.io`},
	{name: "system:node-problem-detector", rules: `
		get nodes
		patch nodes/status
		` + event},
	{name: "system:kubelet-api-admin", rules: `
		get,list,watch nodes
		proxy nodes
		* nodes/proxy nodes/metrics nodes/stats nodes/log nodes/pods nodes/healthz nodes/configz`},
	{name: "system:certificates.k8s.io:certificatesigningrequests:nodeclient", rules: `
		create certificatesigningrequests.certificates.k8s.io/nodeclient`},
	{name: "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", rules: `
		create certificatesigningrequests.certificates.k8s.io/selfnodeclient`},
	{name: "system:certificates.k8s.io:kube-apiserver-client-approver", rules: `
		approve signers.certificates.k8s.io = kubernetes.io/kube-apiserver-client`},
	{name: "system:certificates.k8s.io:kube-apiserver-client-kubelet-approver", rules: `
		approve signers.certificates.k8s.io = kubernetes.io/kube-apiserver-client-kubelet`},
	{name: "system:certificates.k8s.io:kubelet-serving-approver", rules: `
		approve signers.certificates.k8s.io = kubernetes.io/kubelet-serving`},
	{name: "system:certificates.k8s.io:legacy-unknown-approver", rules: `
		approve signers.certificates.k8s.io = kubernetes.io/legacy-unknown`},

	{name: "system:auth-delegator", rules: `
		create tokenreviews.authentication.k8s.io
		create subjectaccessreviews.authorization.k8s.io`},
	{name: "system:kube-aggregator", rules: `
		get,list,watch services endpoints`},
	{name: "system:kube-dns", subjects: []string{"account:kube-system/kube-dns"}, rules: `
		list,watch endpoints services
		list,watch endpointslices.discovery.k8s.io`},
	{name: "system:persistent-volume-provisioner", rules: `
		get,list,watch,create,delete persistentvolumes
		get,list,watch,update persistentvolumeclaims
		get,list,watch storageclasses.storage.k8s.io
		watch events
		` + event},
	{name: "system:kube-scheduler", subjects: []string{"user:system:kube-scheduler"}, rules: `
		` + event + `
		create leases.coordination.k8s.io
		get,list,update,watch leases.coordination.k8s.io = kube-scheduler
		get,list,watch nodes
		delete,get,list,watch pods
		create bindings pods/binding
		patch,update pods/status
		get,list,watch replicationcontrollers services namespaces
		get,list,watch replicasets.apps statefulsets.apps poddisruptionbudgets.policy
		get,list,watch persistentvolumeclaims persistentvolumes
		create tokenreviews.authentication.k8s.io
		create subjectaccessreviews.authorization.k8s.io
		get,list,watch csinodes.storage.k8s.io csidrivers.storage.k8s.io csistoragecapacities.storage.k8s.io ` +
		`volumeattachments.storage.k8s.io
		get,list,watch deviceclasses.resource.k8s.io resourceslices.resource.k8s.io
		get,list,watch,patch,update resourceclaims.resource.k8s.io resourceclaims.resource.k8s.io/status
		patch,update resourceclaims.resource.k8s.io/binding`},
	{name: "system:volume-scheduler", subjects: []string{"user:system:kube-scheduler"}, rules: `
		get,list,patch,update,watch persistentvolumes persistentvolumeclaims
		get,list,watch storageclasses.storage.k8s.io`},
	{name: "system:kube-controller-manager", subjects: []string{"user:system:kube-controller-manager"}, rules: `
		` + event + `
		create leases.coordination.k8s.io
		get,list,update,watch leases.coordination.k8s.io = kube-controller-manager
		create secrets serviceaccounts
		delete secrets
		get configmaps namespaces secrets serviceaccounts
		update secrets serviceaccounts
		create tokenreviews.authentication.k8s.io
		create subjectaccessreviews.authorization.k8s.io
		list,watch *.*
		create serviceaccounts/token`},
}

// nodeRules is what every node may do about objects that are not told apart
// by node; the Node authorizer grants these and checks the rest against who
// runs what.
const nodeRules = `
	create tokenreviews.authentication.k8s.io
	create subjectaccessreviews.authorization.k8s.io localsubjectaccessreviews.authorization.k8s.io
	get,list,watch services
	create,get,list,watch nodes
	patch,update nodes/status
	patch,update nodes
	create,patch,update events
	create,patch,update events.events.k8s.io
	get,list,watch pods
	create,delete pods
	patch,update pods/status
	create pods/eviction
	get,list,watch configmaps secrets
	get persistentvolumeclaims persistentvolumes
	get endpoints
	create,get,list,watch certificatesigningrequests.certificates.k8s.io
	get,list,watch clustertrustbundles.certificates.k8s.io
	create,get,list,watch podcertificaterequests.certificates.k8s.io
	create,delete,get,patch,update leases.coordination.k8s.io
	get volumeattachments.storage.k8s.io
	create serviceaccounts/token
	get serviceaccounts
	get,patch,update persistentvolumeclaims/status
	get,list,watch csidrivers.storage.k8s.io
	create,delete,get,patch,update csinodes.storage.k8s.io
	get,list,watch runtimeclasses.node.k8s.io
	get resourceclaims.resource.k8s.io
	deletecollection resourceslices.resource.k8s.io
	create,delete,get,list,patch,update,watch resourceslices.resource.k8s.io`
