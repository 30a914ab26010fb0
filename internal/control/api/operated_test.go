package api_test

const condition = `{"conditions":[{"type":"Checked","status":"True","reason":"E2E","message":"set by a test",` +
	`"lastTransitionTime":"2024-01-01T00:00:00Z"}]}`

// operated are the kinds whose operations are asked for, most of them by the
// upstream suite, the rest because users would miss them the same.
var operated = []kind{
	{resource: "configmaps", example: `apiVersion: v1
kind: ConfigMap
data: {a: b}`},
	{resource: "secrets", example: `apiVersion: v1
kind: Secret
stringData: {a: b}`},
	{resource: "serviceaccounts", example: `apiVersion: v1
kind: ServiceAccount
automountServiceAccountToken: false`},
	{resource: "endpoints", example: `apiVersion: v1
kind: Endpoints
subsets: [{addresses: [{ip: 10.0.0.24}], ports: [{name: http, port: 80, protocol: TCP}]}]`},
	{resource: "services", status: condition, example: `apiVersion: v1
kind: Service
spec: {type: LoadBalancer, ports: [{name: http, port: 80, protocol: TCP, targetPort: 80}]}`},
	{resource: "limitranges", example: `apiVersion: v1
kind: LimitRange
spec: {limits: [{type: Container, max: {cpu: 500m}, min: {cpu: 50m}, default: {cpu: 300m}, defaultRequest: {cpu: 100m}}]}`},
	{resource: "resourcequotas", status: `{"hard":{"cpu":"5"}}`, example: `apiVersion: v1
kind: ResourceQuota
spec: {hard: {cpu: "1", memory: 500Mi}}`},
	{resource: "podtemplates", example: `apiVersion: v1
kind: PodTemplate
template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}`},
	{resource: "replicationcontrollers", status: condition, example: `apiVersion: v1
kind: ReplicationController
spec: {selector: {a: b}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}`},
	{resource: "events", example: `apiVersion: v1
kind: Event
involvedObject: {kind: Pod, name: p, namespace: "%n"}
reason: Test
message: a test event
type: Normal`},
	{resource: "persistentvolumes", cluster: true, status: `{"message":"m"}`, example: `apiVersion: v1
kind: PersistentVolume
spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], persistentVolumeReclaimPolicy: Retain, hostPath: {path: /tmp}}`},
	{resource: "persistentvolumeclaims", status: condition, example: `apiVersion: v1
kind: PersistentVolumeClaim
spec: {accessModes: [ReadWriteOnce], storageClassName: x, resources: {requests: {storage: 1Gi}}}`},
	{resource: "events", example: `apiVersion: events.k8s.io/v1
kind: Event
eventTime: "2024-01-01T00:00:00.000000Z"
reportingController: test-controller
reportingInstance: test-node
action: Do
reason: Test
note: a note
type: Normal
regarding: {kind: Pod, name: p, namespace: "%n"}`},
	{resource: "controllerrevisions", example: `apiVersion: apps/v1
kind: ControllerRevision
revision: 1
data: {spec: {}}`},
	{resource: "horizontalpodautoscalers", status: condition, example: `apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
spec: {maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: d}}`},
	{resource: "horizontalpodautoscalers", status: `{"currentReplicas":1,"desiredReplicas":1}`, example: `apiVersion: autoscaling/v1
kind: HorizontalPodAutoscaler
spec: {maxReplicas: 3, targetCPUUtilizationPercentage: 60, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: d}}`},
	{resource: "cronjobs", status: `{"lastScheduleTime":"2024-01-01T00:00:00Z"}`, example: `apiVersion: batch/v1
kind: CronJob
spec: {schedule: "*/1 * * * *", jobTemplate: {spec: {template: {spec: {restartPolicy: OnFailure, containers: [{name: c, image: i}]}}}}}`},
	{resource: "poddisruptionbudgets", status: condition, example: `apiVersion: policy/v1
kind: PodDisruptionBudget
spec: {minAvailable: 1, selector: {matchLabels: {a: b}}}`},
	{resource: "leases", example: `apiVersion: coordination.k8s.io/v1
kind: Lease
spec: {holderIdentity: h, leaseDurationSeconds: 30, acquireTime: "2024-01-01T00:00:00.000000Z", renewTime: "2024-01-01T00:00:05.000000Z",` +
		` leaseTransitions: 0}`},
	{resource: "endpointslices", example: `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
addressType: IPv4
endpoints: [{addresses: [1.2.3.4, 5.6.7.8]}]`},
	{resource: "ingresses", status: `{"loadBalancer":{"ingress":[{"ip":"169.1.1.1"}]}}`, example: `apiVersion: networking.k8s.io/v1
kind: Ingress
spec: {defaultBackend: {service: {name: default-backend, port: {number: 80}}}, rules: [{host: foo.bar.com, http: {paths: [{path: /, ` +
		`pathType: Prefix, backend: {service: {name: test, port: {number: 8080}}}}]}}]}`},
	{resource: "ingressclasses", cluster: true, example: `apiVersion: networking.k8s.io/v1
kind: IngressClass
spec: {controller: example.com/controller}`},
	{resource: "networkpolicies", example: `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
spec: {podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{from: [{podSelector: {matchLabels: {pod-name: client-a}}}]}]}`},
	{resource: "servicecidrs", cluster: true, status: condition, example: `apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
spec: {cidrs: [192.168.%i.0/24]}`},
	{resource: "ipaddresses", cluster: true, example: `apiVersion: networking.k8s.io/v1
kind: IPAddress
metadata: {name: 192.0.2.10%i}
spec: {parentRef: {resource: services, name: none, namespace: default}}`},
	{resource: "flowschemas", cluster: true, status: condition, example: `apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
spec: {matchingPrecedence: 10000, priorityLevelConfiguration: {name: global-default}, distinguisherMethod: {type: ByUser}, rules: ` +
		`[{subjects: [{kind: User, user: {name: example-e2e-non-existent-user}}], nonResourceRules: [{verbs: ["*"], nonResourceURLs: ` +
		`["*"]}]}]}`},
	{resource: "prioritylevelconfigurations", cluster: true, status: condition, example: `apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
spec: {type: Limited, limited: {nominalConcurrencyShares: 2, limitResponse: {type: Reject}}}`},
	{resource: "validatingwebhookconfigurations", cluster: true, example: `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
webhooks: [{name: w.example.com, sideEffects: None, admissionReviewVersions: [v1], clientConfig: {url: "https://127.0.0.1:1/"}, rules: ` +
		`[{operations: [CREATE], apiGroups: [none.example.com], apiVersions: [v1], resources: [none]}]}]`},
	{resource: "mutatingwebhookconfigurations", cluster: true, example: `apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
webhooks: [{name: w.example.com, sideEffects: None, admissionReviewVersions: [v1], clientConfig: {url: "https://127.0.0.1:1/"}, rules: ` +
		`[{operations: [CREATE], apiGroups: [none.example.com], apiVersions: [v1], resources: [none]}]}]`},
	{resource: "validatingadmissionpolicies", cluster: true, status: condition, example: `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
spec: {matchConstraints: {resourceRules: [{operations: [CREATE], apiGroups: [apps], apiVersions: [v1], resources: [deployments]}]}, ` +
		`validations: [{expression: "object.spec.replicas <= 100"}]}`},
	{resource: "validatingadmissionpolicybindings", cluster: true, example: `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
spec: {policyName: nobody, validationActions: [Deny]}`},
	{resource: "mutatingadmissionpolicies", cluster: true, example: `apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
spec: {reinvocationPolicy: Never, matchConstraints: {resourceRules: [{operations: [CREATE], apiGroups: [apps], apiVersions: [v1], ` +
		`resources: [deployments]}]}, mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{}"}}]}`},
	{resource: "mutatingadmissionpolicybindings", cluster: true, example: `apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
spec: {policyName: nobody}`},
	{resource: "certificatesigningrequests", cluster: true,
		status: `{"conditions":[{"type":"StatusUpdate","status":"True","reason":"E2E","message":"set by a test"}]}`,
		example: `apiVersion: certificates.k8s.io/v1
kind: CertificateSigningRequest
spec: {signerName: example.com/e2e, expirationSeconds: 3600, usages: [digital signature, key encipherment, server auth], request: ` +
			`LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlISk1IQUNBUUF3RGpFTU1Bb0dBMVVFQXd3RFpUSmxNRmt3RXdZSEtvWkl6ajBDQVFZSUtv` +
			`Wkl6ajBEQVFjRApRZ0FFSVFocnd0N3BxRE1HenE3Z0dRSXFyN2dXcE9WZmwzZ3c1dHhZN2phQVdYbGtaZUdXQlh1TjRLSVVubSszCnJUZElWZG1sdEVEZHdL` +
			`SVJlOUJQME1HVVQ2QUFNQW9HQ0NxR1NNNDlCQU1DQTBrQU1FWUNJUUR5RkwvRW9TVDYKNjlaVE9XcE8rbjBFT1ZqclU4OTNGbkRpd1FOb0diMUtUZ0loQVBM` +
			`WjVnUjZqY0thMnlkajNQMWZXMDFuVXRKbQorNkw5eEphcVhQNGxIZ1p6Ci0tLS0tRU5EIENFUlRJRklDQVRFIFJFUVVFU1QtLS0tLQo=}`},
	{resource: "podcertificaterequests",
		status: `{"conditions":[{"type":"Denied","status":"True","reason":"E2E","message":"set by a test",` +
			`"lastTransitionTime":"2024-01-01T00:00:00Z"}]}`, example: `apiVersion: certificates.k8s.io/v1
kind: PodCertificateRequest
spec: {signerName: example.com/e2e, podName: p, podUID: pu, serviceAccountName: s, serviceAccountUID: su, nodeName: node, nodeUID: nu, ` +
			`stubPKCS10Request: ` +
			`MH8wMwIBADAAMCowBQYDK2VwAyEAUvn1FVNne+5DOB+g7q9s+FDWbuWcc1jG+xSTe6geNsegADAFBgMrZXADQQD4uQjD0ynIjwlnql5XhO1A9+Ey4maa8HHU` +
			`pja1giexq+q9MB4nK2YluA+yzj7mJUeZq6XWNkykLtpAgqgwyGUH}`},
	{resource: "runtimeclasses", cluster: true, example: `apiVersion: node.k8s.io/v1
kind: RuntimeClass
handler: h`},
	{resource: "priorityclasses", cluster: true, example: `apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
value: 10`},
	{resource: "csidrivers", cluster: true, example: `apiVersion: storage.k8s.io/v1
kind: CSIDriver
spec: {attachRequired: true}`},
	{resource: "csinodes", cluster: true, example: `apiVersion: storage.k8s.io/v1
kind: CSINode
spec: {drivers: [{name: d, nodeID: id}]}`},
	{resource: "volumeattachments", cluster: true, status: `{"attached":true}`, example: `apiVersion: storage.k8s.io/v1
kind: VolumeAttachment
spec: {attacher: a.example.com, nodeName: node, source: {persistentVolumeName: pv}}`},
	{resource: "storageclasses", cluster: true, example: `apiVersion: storage.k8s.io/v1
kind: StorageClass
provisioner: e2e-fake-provisioner`},
	{resource: "csistoragecapacities", example: `apiVersion: storage.k8s.io/v1
kind: CSIStorageCapacity
storageClassName: s`},
	{resource: "volumeattributesclasses", cluster: true, example: `apiVersion: storage.k8s.io/v1
kind: VolumeAttributesClass
driverName: d.example.com
parameters: {a: b}`},
	{resource: "roles", example: `apiVersion: rbac.authorization.k8s.io/v1
kind: Role
rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]`},
	{resource: "clusterrolebindings", cluster: true, example: `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{kind: User, apiGroup: rbac.authorization.k8s.io, name: u}]`},
	{resource: "deviceclasses", cluster: true, example: `apiVersion: resource.k8s.io/v1
kind: DeviceClass
spec: {selectors: [{cel: {expression: 'device.driver == "d.example.com"'}}]}`},
	{resource: "resourceclaimtemplates", example: `apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: c}}]}}}`},
	{resource: "resourceclaims", status: `{}`, example: `apiVersion: resource.k8s.io/v1
kind: ResourceClaim
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: c}}]}}`},
	{resource: "resourceslices", cluster: true, example: `apiVersion: resource.k8s.io/v1
kind: ResourceSlice
spec: {driver: d.example.com, nodeName: node, pool: {name: "%s", generation: 1, resourceSliceCount: 1}, devices: [{name: dev}]}`},
	{resource: "customresourcedefinitions", cluster: true, status: condition, example: `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: "%ss.operated.example.com"}
spec: {group: operated.example.com, scope: Namespaced, names: {plural: "%ss", kind: "%s-kind"}, versions: [{name: v1, served: true, ` +
		`storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}`},
	{resource: "apiservices", cluster: true, status: condition, example: `apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: "v1.%s.example.com"}
spec: {group: "%s.example.com", version: v1, groupPriorityMinimum: 100, versionPriority: 10, insecureSkipTLSVerify: true, service: ` +
		`{name: none, namespace: default}}`},
}
