// Package why is the catalogue of faults: each is injected for real on a
// cluster of `berth up`, and `berth why` must name its cause in the first line.
//
// To add a fault, add an entry to a list of catalogue: its name, what makes it,
// who is asked, and words that the first line must have.
package why

// fault is one entry. NS stands for the fault's own namespace, NODE for the
// node's name and IMG for an image that is there.
type fault struct {
	name string
	// yaml is applied in the namespace of the fault; server-side refusals of
	// single documents are faults of the entry.
	yaml string
	// run are kubectl command lines after that, each split at blanks.
	run []string
	// ask is KIND NAME of the question.
	ask string
	// want must all be in the first line: the object and the field or rule.
	want []string
	// naive must all be in the object's own conditions and newest events for
	// them to count as an answer; nil means the same as want. They are looser
	// where the plain words of events differ from ours.
	naive []string
}

// pod is a manifest of a pod whose container has the lines of spec.
func pod(name, container string, spec ...string) string {
	out := "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", labels: {app: " + name + "}}\nspec:\n" +
		"  terminationGracePeriodSeconds: 0\n"
	for _, s := range spec {
		out += "  " + s + "\n"
	}
	return out + "  containers: [" + container + "]\n---\n"
}

// mounter mounts volume v.
const mounter = "{name: c, image: IMG, command: [sleep, 1h], volumeMounts: [{name: v, mountPath: /v}]}"

const sleeper = "{name: c, image: IMG, command: [sleep, 1h]}"

func deployment(name, template string, more string) string {
	return "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: " + name + "}\nspec:\n  replicas: 1\n  " + more +
		"\n  selector: {matchLabels: {app: " + name + "}}\n  template:\n    metadata: {labels: {app: " + name + "}}\n    spec: " +
		template + "\n---\n"
}

// images are faults of images and of starting.
var images = []fault{
	{name: "image-registry-unknown", yaml: pod("p", "{name: c, image: 'registry.invalid/x:1'}"), ask: "pod p",
		want: []string{"image registry.invalid/x:1", "does not resolve"}, naive: []string{"registry.invalid/x:1", "no such host"}},
	{name: "image-registry-refuses", yaml: pod("p", "{name: c, image: '127.0.0.1:1/x:1'}"), ask: "pod p",
		want: []string{"image 127.0.0.1:1/x:1", "does not answer"}, naive: []string{"127.0.0.1:1/x:1", "refused"}},
	{name: "image-name-invalid", yaml: pod("p", "{name: c, image: 'Not//Valid'}"), ask: "pod p",
		want: []string{"image Not//Valid", "not valid"}, naive: []string{"Not//Valid", "InvalidImageName"}},
	{name: "image-never", yaml: pod("p", "{name: c, image: 'example.com/none:1', imagePullPolicy: Never}"), ask: "pod p",
		want: []string{"example.com/none:1", "imagePullPolicy"}, naive: []string{"example.com/none:1", "Never"}},
	{name: "pull-secret-missing", yaml: pod("p", "{name: c, image: '127.0.0.1:1/x:2'}", "imagePullSecrets: [{name: keys}]"),
		ask: "pod p", want: []string{"Secret keys", "image"}, naive: []string{"keys", "secret"}},
	{name: "command-missing", yaml: pod("p", "{name: c, image: IMG, command: [/no/such]}"), ask: "pod p",
		want: []string{"command /no/such", "container c"}, naive: []string{"/no/such"}},
	{name: "crash-code", yaml: pod("p", "{name: c, image: IMG, command: [sh, -c, exit 3]}"), ask: "pod p",
		want: []string{"container c exits with code 3"}, naive: []string{`"exitCode": 3`}},
	{name: "exits-zero", yaml: pod("p", "{name: c, image: IMG, command: [sh, -c, exit 0]}"), ask: "pod p",
		want: []string{"container c exits with 0", "restartPolicy"}, naive: []string{`"exitCode": 0`}},
	{name: "configmap-env-missing", yaml: pod("p", "{name: c, image: IMG, envFrom: [{configMapRef: {name: words}}]}"), ask: "pod p",
		want: []string{"ConfigMap words does not exist"}, naive: []string{"configmap", "words", "not found"}},
	{name: "secret-env-missing", yaml: pod("p", "{name: c, image: IMG, envFrom: [{secretRef: {name: keys}}]}"), ask: "pod p",
		want: []string{"Secret keys does not exist"}, naive: []string{"secret", "keys", "not found"}},
	{name: "configmap-key-missing", yaml: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: words}\ndata: {a: b}\n---\n" +
		pod("p", "{name: c, image: IMG, env: [{name: K, valueFrom: {configMapKeyRef: {name: words, key: zz}}}]}"), ask: "pod p",
		want: []string{"ConfigMap words has no key zz"}, naive: []string{"zz", "words"}},
	{name: "configmap-volume-missing", yaml: pod("p", mounter, "volumes: [{name: v, configMap: {name: files}}]"), ask: "pod p",
		want: []string{"ConfigMap files does not exist"}, naive: []string{"configmap", "files", "not found"}},
	{name: "secret-volume-missing", yaml: pod("p", mounter, "volumes: [{name: v, secret: {secretName: tls}}]"), ask: "pod p",
		want: []string{"Secret tls does not exist"}, naive: []string{"secret", "tls", "not found"}},
	{name: "configmap-item-missing", yaml: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: files}\ndata: {a: b}\n---\n" +
		pod("p", mounter, "volumes: [{name: v, configMap: {name: files, items: [{key: zz, path: z}]}}]"), ask: "pod p",
		want: []string{"ConfigMap files has no key zz"}, naive: []string{"zz", "files"}},
	{name: "run-as-non-root", yaml: pod("p", "{name: c, image: IMG, securityContext: {runAsNonRoot: true}}"), ask: "pod p",
		want: []string{"runAsNonRoot", "container c"}, naive: []string{"runAsNonRoot"}},
	{name: "hostpath-missing", yaml: pod("p", mounter, "volumes: [{name: v, hostPath: {path: /no/such/dir, type: Directory}}]"),
		ask: "pod p", want: []string{"volume v", "hostPath"}, naive: []string{"\"v\"", "hostPath"}},
	{name: "init-crash", yaml: pod("p", sleeper, "initContainers: [{name: first, image: IMG, command: [sh, -c, exit 5]}]"),
		ask: "pod p", want: []string{"container first exits with code 5"}, naive: []string{"first", "exit", "5"}},
	{name: "init-runs", yaml: pod("p", sleeper, "initContainers: [{name: first, image: IMG, command: [sleep, 1h]}]"),
		ask: "pod p", want: []string{"init container first still runs"}, naive: []string{"first", "incomplete"}},
	{name: "readiness-http", yaml: pod("p", "{name: c, image: IMG, command: [sleep, 1h], readinessProbe: "+
		"{httpGet: {path: /up, port: 8099}, periodSeconds: 1}}"), ask: "pod p",
		want: []string{"readiness probe of container c", ":8099/up"}, naive: []string{"Readiness probe failed", "8099/up"}},
	{name: "readiness-exec", yaml: pod("p", "{name: c, image: IMG, command: [sleep, 1h], readinessProbe: "+
		"{exec: {command: [sh, -c, exit 1]}, periodSeconds: 1}}"), ask: "pod p",
		want: []string{"readiness probe of container c", "exec sh -c exit 1"}, naive: []string{"Readiness probe failed", "exit 1"}},
	{name: "liveness", yaml: pod("p", "{name: c, image: IMG, command: [sleep, 1h], livenessProbe: "+
		"{tcpSocket: {port: 8099}, periodSeconds: 1, failureThreshold: 1}}"), ask: "pod p",
		want: []string{"liveness probe of container c", "TCP :8099"}, naive: []string{"Liveness probe failed", "8099"}},
	{name: "startup", yaml: pod("p", "{name: c, image: IMG, command: [sleep, 1h], startupProbe: "+
		"{tcpSocket: {port: 8098}, periodSeconds: 1, failureThreshold: 90}}"), ask: "pod p",
		want: []string{"startup probe of container c", "TCP :8098"}, naive: []string{"Startup probe failed", "8098"}},
	{name: "readiness-gate", yaml: pod("p", sleeper, "readinessGates: [{conditionType: example.com/lb}]"), ask: "pod p",
		want: []string{"readiness gate example.com/lb"}, naive: []string{"example.com/lb"}},
	{name: "runtimeclass", yaml: "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: nothing-NS}\nhandler: nothing\n---\n" +
		pod("p", sleeper, "runtimeClassName: nothing-NS"), ask: "pod p", want: []string{"RuntimeClass nothing-NS", "handler"},
		naive: []string{"nothing", "runtime"}},
	{name: "pod-deadline", yaml: pod("p", sleeper, "activeDeadlineSeconds: 1"), ask: "pod p",
		want: []string{"activeDeadlineSeconds"}, naive: []string{"DeadlineExceeded"}},
}

// scheduling are faults of placing pods.
var scheduling = []fault{
	{name: "cpu", yaml: pod("p", "{name: c, image: IMG, resources: {requests: {cpu: '900'}}}"), ask: "pod p",
		want: []string{"NODE", "Insufficient cpu", "asks 900"}, naive: []string{"Insufficient cpu"}},
	{name: "memory", yaml: pod("p", "{name: c, image: IMG, resources: {requests: {memory: 9Ti}}}"), ask: "pod p",
		want: []string{"Insufficient memory", "asks 9Ti"}, naive: []string{"Insufficient memory"}},
	{name: "device", yaml: pod("p", "{name: c, image: IMG, resources: {limits: {example.com/gpu: 1}}}"), ask: "pod p",
		want: []string{"example.com/gpu"}},
	{name: "node-selector", yaml: pod("p", sleeper, "nodeSelector: {disk: fast}"), ask: "pod p",
		want: []string{"nodeSelector", "disk=fast"}, naive: []string{"node selector", "disk"}},
	{name: "node-affinity", yaml: pod("p", sleeper, "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: "+
		"{nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: In, values: [moon]}]}]}}}"), ask: "pod p",
		want: []string{"nodeAffinity", "zone In moon"}, naive: []string{"affinity", "zone"}},
	{name: "pod-affinity", yaml: pod("p", sleeper, "affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: "+
		"[{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: nowhere}}}]}}"), ask: "pod p",
		want: []string{"podAffinity"}, naive: []string{"pod affinity rules"}},
	{name: "scheduling-gate", yaml: pod("p", sleeper, "schedulingGates: [{name: example.com/wait}]"), ask: "pod p",
		want: []string{"scheduling gate example.com/wait"}, naive: []string{"example.com/wait"}},
	{name: "scheduler-unknown", yaml: pod("p", sleeper, "schedulerName: moon"), ask: "pod p", want: []string{"no scheduler named moon"},
		naive: []string{"moon"}},
	{name: "claim-missing", yaml: pod("p", sleeper, "volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]"), ask: "pod p",
		want: []string{"PersistentVolumeClaim data", "does not exist"}, naive: []string{"data", "not found"}},
	{name: "host-port", yaml: pod("a", "{name: c, image: IMG, command: [sleep, 1h], ports: [{containerPort: 1, hostPort: 20999}]}",
		"nodeName: NODE") + pod("p", "{name: c, image: IMG, ports: [{containerPort: 1, hostPort: 20999}]}"), ask: "pod p",
		want: []string{"hostPort"}, naive: []string{"free ports"}},
	{name: "refused-by-node", yaml: pod("p", "{name: c, image: IMG, resources: {requests: {cpu: '900'}}}", "nodeName: NODE"), ask: "pod p",
		want: []string{"node NODE refused the pod", "cpu"}, naive: []string{"OutOfcpu"}},
	{name: "daemonset-nowhere",
		yaml: "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: d}\nspec:\n  selector: {matchLabels: {app: d}}\n" +
			"  template: {metadata: {labels: {app: d}}, spec: {nodeSelector: {disk: fast}, containers: [" + sleeper + "]}}\n",
		ask: "daemonset d", want: []string{"nodeSelector", "disk=fast"}},
}

// storage are faults of claims and volumes.
var storage = []fault{
	{name: "class-missing", yaml: claim("data", "storageClassName: none-such"), ask: "pvc data",
		want: []string{"StorageClass none-such does not exist"}, naive: []string{"none-such", "not found"}},
	{name: "class-missing-pod", yaml: claim("data", "storageClassName: none-such") +
		pod("p", sleeper, "volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]"), ask: "pod p",
		want: []string{"PersistentVolumeClaim data", "StorageClass none-such"}},
	{name: "no-consumer", yaml: "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: late-NS}\nprovisioner: " +
		"example.com/x\n" +
		"volumeBindingMode: WaitForFirstConsumer\n---\n" + claim("data", "storageClassName: late-NS"), ask: "pvc data",
		want: []string{"first pod", "late-NS"}, naive: []string{"first consumer"}},
	{name: "no-provisioner", yaml: "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: ext-NS}\n" +
		"provisioner: example.com/x\n---\n" + claim("data", "storageClassName: ext-NS"), ask: "pvc data",
		want: []string{"provisioner example.com/x", "ext-NS"}, naive: []string{"example.com/x"}},
	{name: "static-none", yaml: "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: st-NS}\n" +
		"provisioner: kubernetes.io/no-provisioner\n---\n" + claim("data", "storageClassName: st-NS"), ask: "pvc data",
		want: []string{"no PersistentVolume of class st-NS"}, naive: []string{"no persistent volumes available", "st-NS"}},
	{name: "volume-missing", yaml: claim("data", "storageClassName: '', volumeName: gone-NS"), ask: "pvc data",
		want: []string{"PersistentVolume gone-NS", "does not exist"}},
	{name: "claim-in-use", yaml: "apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: pv-NS}\nspec: {capacity: {storage: 1Gi}, " +
		"accessModes: [ReadWriteOnce], storageClassName: '', hostPath: {path: /tmp}}\n---\n" +
		claim("data", "storageClassName: '', volumeName: pv-NS") +
		pod("p", sleeper, "nodeName: NODE", "volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]"),
		run: []string{"wait --for=condition=Ready pod/p --timeout=60s", "delete pvc data --wait=false"}, ask: "pvc data",
		want: []string{"pod p still uses it", "pvc-protection"}},
}

func claim(name, more string) string {
	return "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: " + name +
		"}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, " + more + "}\n---\n"
}

// workloads are faults of what makes pods.
var workloads = []fault{
	{name: "quota", yaml: "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: small}\nspec: {hard: {pods: '0'}}\n---\n" +
		deployment("d", "{containers: ["+sleeper+"]}", ""), ask: "deployment d", want: []string{"ResourceQuota small", "pods=1"},
		naive: []string{"exceeded quota: small"}},
	{name: "quota-job", yaml: "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: small}\nspec: {hard: {pods: '0'}}\n---\n" +
		job("j", "", "{restartPolicy: Never, containers: ["+sleeper+"]}"), ask: "job j", want: []string{"ResourceQuota small"},
		naive: []string{"exceeded quota: small"}},
	{name: "limit-range", yaml: "apiVersion: v1\nkind: LimitRange\nmetadata: {name: bounds}\nspec: {limits: [{type: Container, max: " +
		"{cpu: 100m}}]}\n---\n" +
		deployment("d", "{containers: [{name: c, image: IMG, resources: {requests: {cpu: 50m}, limits: {cpu: '2'}}}]}", ""),
		ask: "deployment d", want: []string{"LimitRange", "cpu"}, naive: []string{"maximum cpu usage per Container"}},
	{name: "pod-security", run: []string{"label namespace NS pod-security.kubernetes.io/enforce=restricted",
		"create deployment d --image=IMG"}, ask: "deployment d", want: []string{"pod-security.kubernetes.io/enforce", "restricted"},
		naive: []string{"violates PodSecurity", "restricted"}},
	{name: "service-account", yaml: deployment("d", "{serviceAccountName: ghost, containers: ["+sleeper+"]}", ""), ask: "deployment d",
		want: []string{"ServiceAccount ghost does not exist"}, naive: []string{"serviceaccount", "ghost", "not found"}},
	{name: "deployment-image", yaml: deployment("d", "{containers: [{name: c, image: 'registry.invalid/y:1'}]}", ""), ask: "deployment d",
		want: []string{"image registry.invalid/y:1"}},
	{name: "paused", yaml: deployment("d", "{containers: ["+sleeper+"]}", "paused: true"), ask: "deployment d",
		want: []string{"paused (spec.paused)"}, naive: []string{"DeploymentPaused"}},
	{name: "scaled-to-zero", yaml: deployment("d", "{containers: ["+sleeper+"]}", ""), run: []string{"scale deployment d --replicas=0"},
		ask: "deployment d", want: []string{"scaled to 0", "spec.replicas"}, naive: []string{"spec.replicas"}},
	{name: "statefulset-first",
		yaml: "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: s}\nspec:\n  replicas: 3\n  serviceName: s\n" +
			"  selector: {matchLabels: {app: s}}\n  template: {metadata: {labels: {app: s}}, spec: {containers: [{name: c, image: IMG, " +
			"command: [sh, -c, exit 4]}]}}\n", ask: "statefulset s", want: []string{"pod s-0", "exits with code 4"}},
	{name: "job-backoff", yaml: job("j", "backoffLimit: 0,", "{restartPolicy: Never, containers: [{name: c, image: IMG, command: "+
		"[sh, -c, exit 7]}]}"), ask: "job j", want: []string{"backoffLimit 0", "code 7"}, naive: []string{"backoff limit", "code 7"}},
	{name: "job-deadline", yaml: job("j", "activeDeadlineSeconds: 1,",
		"{restartPolicy: Never, terminationGracePeriodSeconds: 0, containers: ["+
			sleeper+"]}"), ask: "job j", want: []string{"activeDeadlineSeconds 1"}, naive: []string{"DeadlineExceeded", "deadline"}},
	{name: "job-suspended", yaml: job("j", "suspend: true,", "{restartPolicy: Never, containers: ["+sleeper+"]}"), ask: "job j",
		want: []string{"suspended (spec.suspend)"}, naive: []string{"suspended"}},
	{name: "cronjob-suspended",
		yaml: "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: c}\nspec: {schedule: '* * * * *', suspend: true, " +
			"jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [" + sleeper + "]}}}}}\n", ask: "cronjob c",
		want: []string{"suspended (spec.suspend)"}, naive: []string{"suspend"}},
	{name: "hpa-no-target", yaml: hpa("h", "nothing"), ask: "hpa h", want: []string{"Deployment nothing does not exist"},
		naive: []string{"nothing", "not found"}},
	{name: "hpa-no-request", yaml: deployment("d", "{containers: ["+sleeper+"]}", "") + hpa("h", "d"), ask: "hpa h",
		want: []string{"it cannot scale", "cpu"}, naive: []string{"cpu"}},
	{name: "webhook-down", yaml: "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\nmetadata: {name: " +
		"hook-NS}\n" +
		"webhooks: [{name: hook.example.com, sideEffects: None, admissionReviewVersions: [v1], timeoutSeconds: 1, " +
		"clientConfig: {url: 'https://127.0.0.1:1/'}, namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}, " +
		"rules: [{apiGroups: [''], apiVersions: [v1], operations: [CREATE], resources: [pods]}]}]\n---\n" +
		deployment("d", "{containers: ["+sleeper+"]}", ""), ask: "deployment d", want: []string{"webhook hook.example.com"}},
}

func hpa(name, target string) string {
	return "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: " + name + "}\nspec: {maxReplicas: 3, " +
		"scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: " + target + "}, metrics: [{type: Resource, resource: {name: cpu, " +
		"target: {type: Utilization, averageUtilization: 50}}}]}\n---\n"
}

func job(name, more, template string) string {
	return "apiVersion: batch/v1\nkind: Job\nmetadata: {name: " + name + "}\nspec: {" + more + " template: {spec: " + template + "}}\n---\n"
}

// network are faults of Services and policies.
var network = []fault{
	{name: "selector", yaml: pod("web", sleeper) + service("s", "{app: wbe}", "{port: 80}"), ask: "service s",
		want: []string{"selector app=wbe matches no pod"}},
	{name: "target-port-name", yaml: pod("web", sleeper) + service("s", "{app: web}", "{port: 80, targetPort: http}"), ask: "service s",
		want: []string{`targetPort "http"`}},
	{name: "target-port-number", yaml: pod("web", "{name: c, image: IMG, command: [sleep, 1h], ports: [{containerPort: 8080}]}") +
		service("s", "{app: web}", "{port: 80, targetPort: 8090}"), run: []string{"wait --for=condition=Ready pod/web --timeout=60s"},
		ask: "service s", want: []string{"targetPort 8090", "8080"}},
	{name: "unready-endpoint", yaml: pod("web", "{name: c, image: 'registry.invalid/z:1'}") + service("s", "{app: web}", "{port: 80}"),
		ask: "service s", want: []string{"pod web", "image registry.invalid/z:1"}},
	{name: "no-selector", yaml: service("s", "{}", "{port: 80}"), ask: "service s", want: []string{"no selector"}},
	{name: "policy", yaml: pod("web", sleeper) + service("s", "{app: web}", "{port: 80}") + "apiVersion: networking.k8s.io/v1\n" +
		"kind: NetworkPolicy\nmetadata: {name: deny}\nspec: {podSelector: {}, policyTypes: [Ingress]}\n",
		run: []string{"wait --for=condition=Ready pod/web --timeout=60s"}, ask: "service s", want: []string{"NetworkPolicy deny", "drops"}},
	{name: "policy-pod", yaml: pod("web", sleeper) + "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: mute}\n" +
		"spec: {podSelector: {}, policyTypes: [Egress]}\n", run: []string{"wait --for=condition=Ready pod/web --timeout=60s"},
		ask:  "pod web",
		want: []string{"NetworkPolicy mute", "egress"}},
	{name: "load-balancer-class",
		yaml: pod("web", sleeper) + "apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {type: LoadBalancer, " +
			"loadBalancerClass: example.com/lb, selector: {app: web}, ports: [{port: 80}]}\n",
		run: []string{"wait --for=condition=Ready pod/web --timeout=60s"}, ask: "service s",
		want: []string{"loadBalancerClass example.com/lb"}},
	{name: "ingress-class", yaml: pod("web", sleeper) + service("s", "{app: web}", "{port: 80}") + ingress("moon", "s", 80),
		ask:  "ingress i",
		want: []string{"IngressClass moon does not exist"}},
	{name: "ingress-service", yaml: ingress("moon", "ghost", 80), ask: "ingress i", want: []string{"Service ghost does not exist"}},
	{name: "budget", yaml: deployment("d", "{containers: ["+sleeper+"]}", "") + budget("{app: d}"),
		run: []string{"wait --for=condition=Available deployment/d --timeout=60s"}, ask: "pdb b", want: []string{"minAvailable 1",
			"no eviction"},
		naive: []string{"InsufficientPods", "minAvailable"}},
	{name: "budget-selects-none", yaml: budget("{app: ghost}"), ask: "pdb b", want: []string{"selector app=ghost matches no pod"}},
}

func service(name, selector, port string) string {
	return "apiVersion: v1\nkind: Service\nmetadata: {name: " + name + "}\nspec: {selector: " + selector + ", ports: [" + port + "]}\n---\n"
}

func ingress(class, service string, port int) string {
	return "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: i}\nspec: {ingressClassName: " + class +
		", defaultBackend: {service: {name: " + service + ", port: {number: 80}}}}\n---\n"
}

func budget(selector string) string {
	return "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: b}\nspec: {minAvailable: 1, selector: {matchLabels: " +
		selector + "}}\n---\n"
}

// ends are faults of deleting, of nodes and of certificates.
var ends = []fault{
	{name: "pod-finalizer", yaml: pod("p", sleeper, "nodeName: NODE"), run: []string{
		"wait --for=condition=Ready pod/p --timeout=60s", `patch pod p --type=merge -p {"metadata":{"finalizers":["example.com/hold"]}}`,
		"delete pod p --wait=false"}, ask: "pod p", want: []string{"finalizer example.com/hold"}},
	{name: "namespace-finalizer", yaml: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: held, finalizers: [example.com/hold]}\n",
		run: []string{"delete namespace NS --wait=false"}, ask: "namespace NS",
		want: []string{"configmap held", "finalizer example.com/hold"}},
	{name: "csr-unapproved", yaml: csr("csr-NS"), ask: "csr csr-NS", want: []string{"nobody has approved"}, naive: []string{"approve"}},
	{name: "csr-denied", yaml: csr("csr-NS"), run: []string{"certificate deny csr-NS"}, ask: "csr csr-NS", want: []string{"was denied"},
		naive: []string{"Denied"}},
	{name: "csr-unsigned", yaml: csr("csr-NS"), run: []string{"certificate approve csr-NS"}, ask: "csr csr-NS",
		want: []string{"signer example.com/signer has not signed"}},
	{name: "apiservice-down", yaml: "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {name: v1.NS.example.com}\nspec: " +
		"{group: NS.example.com, " +
		"version: v1, groupPriorityMinimum: 1, versionPriority: 1, insecureSkipTLSVerify: true, service: {name: gone, namespace: NS}}\n",
		ask: "apiservice v1.NS.example.com", want: []string{"APIService v1.NS.example.com", "not available"},
		naive: []string{"gone", "not present"}},
	{name: "node-silent", yaml: "apiVersion: v1\nkind: Node\nmetadata: {name: dead-NS}\n", ask: "node dead-NS",
		want: []string{"agent", "never posted"}, naive: []string{"NodeStatusNeverUpdated"}},
	{name: "deleted-pod", yaml: pod("p", sleeper), run: []string{"wait --for=condition=Ready pod/p --timeout=60s", "delete pod p --now"},
		ask: "pod p", want: []string{"does not exist any more"}},
	{name: "never-existed", ask: "pod ghost", want: []string{"does not exist", "neither"}},
}

func csr(name string) string {
	return "apiVersion: certificates.k8s.io/v1\nkind: CertificateSigningRequest\nmetadata: {name: " + name + "}\nspec: {request: CSRPEM, " +
		"signerName: example.com/signer, usages: [client auth]}\n---\n"
}

// catalogue are all faults that run at the same time, each in a namespace of
// its own.
func catalogue() (out []fault) {
	for _, list := range [][]fault{images, scheduling, storage, workloads, network, ends} {
		out = append(out, list...)
	}
	return out
}
