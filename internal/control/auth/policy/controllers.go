package policy

// controllerRoles are the roles of the control plane's own loops, each named
// system:controller:<name> and bound to the service account of that name in
// kube-system.
var controllerRoles = []entry{
	{name: "attachdetach-controller", rules: event + `
		list,watch persistentvolumes persistentvolumeclaims pods nodes csinodes.storage.k8s.io csidrivers.storage.k8s.io
		get persistentvolumes persistentvolumeclaims nodes
		patch,update nodes/status
		create,delete,get,list,patch,watch volumeattachments.storage.k8s.io`},
	{name: "certificate-controller", rules: event + `
		delete,get,list,watch certificatesigningrequests.certificates.k8s.io
		delete,get,list,watch podcertificaterequests.certificates.k8s.io
		update certificatesigningrequests.certificates.k8s.io/status certificatesigningrequests.certificates.k8s.io/approval
		approve signers.certificates.k8s.io = kubernetes.io/kube-apiserver-client-kubelet
		sign signers.certificates.k8s.io = kubernetes.io/kube-apiserver-client kubernetes.io/kube-apiserver-client-kubelet ` +
		`kubernetes.io/kubelet-serving kubernetes.io/legacy-unknown
		create subjectaccessreviews.authorization.k8s.io`},
	{name: "clusterrole-aggregation-controller", rules: `
		escalate,get,list,patch,update,watch clusterroles.rbac.authorization.k8s.io`},
	{name: "cronjob-controller", rules: event + `
		get,list,update,watch cronjobs.batch
		create,delete,get,list,patch,update,watch jobs.batch
		update cronjobs.batch/status cronjobs.batch/finalizers
		delete,list pods`},
	{name: "daemon-set-controller", rules: event + `
		get,list,watch daemonsets.apps
		update daemonsets.apps/status daemonsets.apps/finalizers
		list,watch nodes
		create,delete,list,patch,watch pods
		create pods/binding
		create,delete,get,list,patch,update,watch controllerrevisions.apps`},
	{name: "deployment-controller", rules: event + `
		get,list,update,watch deployments.apps
		update deployments.apps/status deployments.apps/finalizers
		create,delete,get,list,patch,update,watch replicasets.apps
		get,list,update,watch pods`},
	{name: "disruption-controller", rules: event + `
		get,list,watch deployments.apps replicasets.apps statefulsets.apps replicationcontrollers poddisruptionbudgets.policy
		update poddisruptionbudgets.policy/status
		get,list,watch pods
		patch,update pods/status
		get *.*/scale`},
	{name: "endpoint-controller", rules: event + `
		get,list,watch pods services
		create,delete,get,list,update endpoints
		create endpoints/restricted`},
	{name: "endpointslice-controller", rules: event + `
		get,list,watch nodes pods services
		update services/finalizers
		create,delete,get,list,update,watch endpointslices.discovery.k8s.io
		create endpointslices.discovery.k8s.io/restricted`},
	{name: "endpointslicemirroring-controller", rules: event + `
		get,list,watch endpoints services
		update services/finalizers endpoints/finalizers
		create,delete,get,list,update,watch endpointslices.discovery.k8s.io
		create endpointslices.discovery.k8s.io/restricted`},
	{name: "ephemeral-volume-controller", rules: event + `
		get,list,watch pods
		update pods/finalizers
		create,get,list,watch persistentvolumeclaims`},
	{name: "expand-controller", rules: event + `
		get,list,patch,update,watch persistentvolumes
		patch,update persistentvolumeclaims/status
		get,list,watch persistentvolumeclaims storageclasses.storage.k8s.io
		get endpoints services`},
	{name: "generic-garbage-collector", rules: event + `
		delete,get,list,patch,update,watch *.*`},
	{name: "horizontal-pod-autoscaler", rules: event + `
		get,list,watch horizontalpodautoscalers.autoscaling
		update horizontalpodautoscalers.autoscaling/status
		get,update *.*/scale
		list pods
		list *.metrics.k8s.io
		get,list *.custom.metrics.k8s.io *.external.metrics.k8s.io`},
	{name: "job-controller", rules: event + `
		get,list,patch,update,watch jobs.batch
		update jobs.batch/status jobs.batch/finalizers
		create,delete,list,patch,watch pods`},
	{name: "namespace-controller", rules: `
		delete,get,list,watch namespaces
		update namespaces/finalize namespaces/status
		delete,deletecollection,get,list *.*`},
	{name: "node-controller", rules: event + `
		delete,get,list,patch,update,watch nodes
		patch,update nodes/status
		get,list,watch pods
		delete pods
		patch,update pods/status
		get,list,watch leases.coordination.k8s.io daemonsets.apps`},
	{name: "persistent-volume-binder", rules: event + `
		create,delete,get,list,patch,update,watch persistentvolumes
		update persistentvolumes/status persistentvolumeclaims/status
		get,list,patch,update,watch persistentvolumeclaims
		get,list,watch storageclasses.storage.k8s.io nodes
		create,delete,get,list,watch pods
		create,delete,get services endpoints
		get secrets`},
	{name: "pod-garbage-collector", rules: `
		delete,list,watch pods
		get,list nodes
		patch,update pods/status`},
	{name: "pv-protection-controller", rules: event + `
		get,list,update,watch persistentvolumes`},
	{name: "pvc-protection-controller", rules: event + `
		get,list,update,watch persistentvolumeclaims
		get,list,watch pods`},
	{name: "replicaset-controller", rules: event + `
		get,list,update,watch replicasets.apps
		update replicasets.apps/status replicasets.apps/finalizers
		create,delete,list,patch,watch pods`},
	{name: "replication-controller", rules: event + `
		get,list,update,watch replicationcontrollers
		update replicationcontrollers/status replicationcontrollers/finalizers
		create,delete,list,patch,watch pods`},
	{name: "resource-claim-controller", rules: event + `
		get,list,watch pods
		update pods/finalizers
		patch,update pods/status
		get,list,watch resourceclaimtemplates.resource.k8s.io
		create,delete,get,list,patch,update,watch resourceclaims.resource.k8s.io
		patch,update resourceclaims.resource.k8s.io/status resourceclaims.resource.k8s.io/binding`},
	{name: "resourcequota-controller", rules: event + `
		list,watch *.*
		update resourcequotas/status`},
	{name: "root-ca-cert-publisher", rules: event + `
		create,update configmaps`},
	{name: "route-controller", rules: event + `
		list,watch nodes
		patch nodes/status`},
	{name: "service-account-controller", rules: event + `
		create serviceaccounts`},
	{name: "service-cidrs-controller", rules: event + `
		get,list,patch,update,watch servicecidrs.networking.k8s.io
		patch,update servicecidrs.networking.k8s.io/status servicecidrs.networking.k8s.io/finalizers
		get,list,watch ipaddresses.networking.k8s.io`},
	{name: "service-controller", rules: event + `
		get,list,watch services nodes
		patch,update services/status
		list,watch endpointslices.discovery.k8s.io`},
	{name: "statefulset-controller", rules: event + `
		get,list,watch statefulsets.apps
		update statefulsets.apps/status statefulsets.apps/finalizers
		create,delete,get,list,patch,update,watch pods
		create,delete,get,list,patch,update,watch controllerrevisions.apps
		create,delete,get,list,update,watch persistentvolumeclaims`},
	{name: "ttl-after-finished-controller", rules: event + `
		delete,get,list,watch jobs.batch`},
	{name: "ttl-controller", rules: event + `
		list,patch,update,watch nodes`},
	{name: "validatingadmissionpolicy-status-controller", rules: event + `
		get,list,watch validatingadmissionpolicies.admissionregistration.k8s.io
		get,patch,update validatingadmissionpolicies.admissionregistration.k8s.io/status`},
}

// berthRoles are what our controllers need beside upstream's roles, each named
// berth:controller:<account>: most write a patch where upstream's update a whole
// object. TestControllersHaveTheRightsTheyDeclare holds both lists together.
var berthRoles = []entry{
	{name: "certificate-controller", rules: `
		get,list nodes
		get leases.coordination.k8s.io
		approve signers.certificates.k8s.io = kubernetes.io/kubelet-serving
		patch certificatesigningrequests.certificates.k8s.io/status`},
	{name: "cloud-node-controller", rules: `
		create,patch events
		delete,get,patch nodes
		patch nodes/status`},
	{name: "cronjob-controller", rules: `
		patch cronjobs.batch/status`},
	{name: "daemon-set-controller", rules: `
		patch daemonsets.apps/status`},
	{name: "deployment-controller", rules: `
		patch deployments.apps deployments.apps/status`},
	{name: "disruption-controller", rules: `
		patch poddisruptionbudgets.policy/status`},
	{name: "endpoint-controller", rules: `
		patch endpoints`},
	{name: "endpointslicemirroring-controller", rules: `
		patch endpointslices.discovery.k8s.io`},
	{name: "horizontal-pod-autoscaler", rules: `
		patch horizontalpodautoscalers.autoscaling/status`},
	{name: "job-controller", rules: `
		patch jobs.batch/status`},
	{name: "local-volume-provisioner", rules: `
		create,patch events
		create nodes/localvolumes
		create,delete,get,patch persistentvolumes
		create,delete,patch csistoragecapacities.storage.k8s.io
		patch persistentvolumeclaims persistentvolumeclaims/status
		create csidrivers.storage.k8s.io storageclasses.storage.k8s.io`},
	{name: "namespace-controller", rules: `
		patch namespaces/status`},
	{name: "persistent-volume-binder", rules: `
		patch persistentvolumes/status persistentvolumeclaims/status`},
	{name: "pv-protection-controller", rules: `
		patch persistentvolumes`},
	{name: "pvc-protection-controller", rules: `
		patch persistentvolumeclaims`},
	{name: "replicaset-controller", rules: `
		patch replicasets.apps/status`},
	{name: "replication-controller", rules: `
		patch replicationcontrollers/status`},
	{name: "resourcequota-controller", rules: `
		patch resourcequotas/status`},
	{name: "root-ca-cert-publisher", rules: `
		patch configmaps`},
	{name: "runtime-class-publisher", rules: `
		create runtimeclasses.node.k8s.io`},
	{name: "statefulset-controller", rules: `
		patch persistentvolumeclaims
		patch statefulsets.apps/status`},
	{name: "volumeattributesclass-protection-controller", rules: `
		list persistentvolumeclaims persistentvolumes
		patch volumeattributesclasses.storage.k8s.io`},
}

// namespacedEntry is a Role and, where it has subjects, its RoleBinding.
type namespacedEntry struct {
	namespace, name, rules string
	bindingName            string // defaults to name
	subjects               []string
}

var namespacedRoles = []namespacedEntry{
	{namespace: "kube-system", name: "extension-apiserver-authentication-reader",
		bindingName: "system::extension-apiserver-authentication-reader",
		subjects:    []string{"user:system:kube-controller-manager", "user:system:kube-scheduler"}, rules: `
		get,list,watch configmaps = extension-apiserver-authentication`},
	{namespace: "kube-system", name: "system::leader-locking-kube-controller-manager",
		subjects: []string{"user:system:kube-controller-manager", "account:kube-system/kube-controller-manager"}, rules: `
		watch configmaps
		get,update configmaps = kube-controller-manager`},
	{namespace: "kube-system", name: "system::leader-locking-kube-scheduler",
		subjects: []string{"user:system:kube-scheduler", "account:kube-system/kube-scheduler"}, rules: `
		watch configmaps
		get,update configmaps = kube-scheduler`},
	{namespace: "kube-system", name: "system:controller:bootstrap-signer",
		subjects: []string{"account:kube-system/bootstrap-signer"}, rules: `
		get,list,watch secrets`},
	{namespace: "kube-public", name: "system:controller:bootstrap-signer",
		subjects: []string{"account:kube-system/bootstrap-signer"}, rules: `
		get,list,watch configmaps
		update configmaps = cluster-info
		` + event},
	{namespace: "kube-public", name: "berth:controller:bootstrap-signer",
		subjects: []string{"account:kube-system/bootstrap-signer"}, rules: `
		patch configmaps = cluster-info`},
	{namespace: "kube-system", name: "berth:controller:certificate-controller",
		subjects: []string{"account:kube-system/certificate-controller"}, rules: `
		create,list,patch configmaps`},
	{namespace: "kube-system", name: "berth:controller:local-volume-provisioner",
		subjects: []string{"account:kube-system/local-volume-provisioner"}, rules: `
		create,get configmaps`},
	{namespace: "kube-system", name: "berth:controller:runtime-class-publisher",
		subjects: []string{"account:kube-system/runtime-class-publisher"}, rules: `
		create,get configmaps`},
	{namespace: "kube-system", name: "berth:controller:dns-publisher",
		subjects: []string{"account:kube-system/dns-publisher"}, rules: `
		create services
		get,patch services = kube-dns
		create,delete,list,patch endpointslices.discovery.k8s.io`},
	{namespace: "kube-system", name: "system:controller:cloud-provider",
		subjects: []string{"account:kube-system/cloud-provider"}, rules: `
		create,get,list,watch configmaps`},
	{namespace: "kube-system", name: "system:controller:token-cleaner",
		subjects: []string{"account:kube-system/token-cleaner"}, rules: `
		delete,get,list,watch secrets
		` + event},
}
