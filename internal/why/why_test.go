package why

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/berth-dev/berth/internal/journal"
)

var now = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// types make empty objects by kind.
var types = map[string]func() metav1.Object{
	"Pod": func() metav1.Object { return &v1.Pod{} }, "Node": func() metav1.Object { return &v1.Node{} },
	"Service": func() metav1.Object { return &v1.Service{} }, "Namespace": func() metav1.Object { return &v1.Namespace{} },
	"PersistentVolumeClaim": func() metav1.Object { return &v1.PersistentVolumeClaim{} },
	"StorageClass":          func() metav1.Object { return &storagev1.StorageClass{} },
	"Deployment":            func() metav1.Object { return &appsv1.Deployment{} },
	"ReplicaSet":            func() metav1.Object { return &appsv1.ReplicaSet{} },
	"StatefulSet":           func() metav1.Object { return &appsv1.StatefulSet{} },
	"DaemonSet":             func() metav1.Object { return &appsv1.DaemonSet{} },
	"Job":                   func() metav1.Object { return &batchv1.Job{} }, "CronJob": func() metav1.Object { return &batchv1.CronJob{} },
	"HorizontalPodAutoscaler":   func() metav1.Object { return &autoscalingv2.HorizontalPodAutoscaler{} },
	"CertificateSigningRequest": func() metav1.Object { return &certificatesv1.CertificateSigningRequest{} },
	"Lease":                     func() metav1.Object { return &coordinationv1.Lease{} },
	"EndpointSlice":             func() metav1.Object { return &discoveryv1.EndpointSlice{} },
	"NetworkPolicy":             func() metav1.Object { return &networkingv1.NetworkPolicy{} },
	"Ingress":                   func() metav1.Object { return &networkingv1.Ingress{} },
	"PodDisruptionBudget":       func() metav1.Object { return &policyv1.PodDisruptionBudget{} },
	"APIService":                func() metav1.Object { return &apiregistrationv1.APIService{} },
	"Partial":                   func() metav1.Object { return &metav1.PartialObjectMetadata{} },
}

// world makes a World from lines: "Kind ns/name: YAML of the rest", "absent
// Kind ns/name", "event Kind ns/name Reason: message".
func world(t *testing.T, subject, text string) *World {
	t.Helper()
	kind, full, _ := strings.Cut(subject, " ")
	ns, name, ok := strings.Cut(full, "/")
	if !ok {
		ns, name = "", full
	}
	w := &World{Now: now, Subject: journal.Ref{Kind: kind, Namespace: ns, Name: name}, Done: map[Read]string{}, Absent: map[Read]bool{},
		Logs: map[string]string{}}
	w.Done[Read{Kind: kind, Namespace: ns, Name: name}] = ""
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		head, rest, _ := strings.Cut(line, ": ")
		words := strings.Fields(head)
		verb := words[0]
		if verb == "absent" || verb == "event" || verb == "log" {
			words = words[1:]
		}
		if verb == "log" {
			w.Logs[words[0]] = rest
			continue
		}
		ns, name, ok := strings.Cut(words[1], "/")
		if !ok {
			ns, name = "", words[1]
		}
		switch verb {
		case "absent":
			r := Read{Kind: words[0], Namespace: ns, Name: name}
			delete(w.Done, r)
			w.Absent[r] = true
		case "event":
			w.Objects = append(w.Objects, &v1.Event{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("e", i), Namespace: ns},
				InvolvedObject: v1.ObjectReference{Kind: words[0], Namespace: ns, Name: name}, Reason: words[2], Message: rest, Count: 3,
				LastTimestamp: metav1.NewTime(now.Add(time.Duration(i-100) * time.Second))})
		default:
			o := types[verb]()
			if err := yaml.UnmarshalStrict([]byte(rest), o); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			o.SetNamespace(ns)
			o.SetName(name)
			if o.GetUID() == "" {
				o.SetUID("u-" + "x")
			}
			if c := o.GetCreationTimestamp(); c.IsZero() {
				o.SetCreationTimestamp(metav1.NewTime(now.Add(-5 * time.Minute)))
			}
			w.Objects = append(w.Objects, o)
		}
	}
	return w
}

const (
	running = `status: {phase: Running, conditions: [{type: PodScheduled, status: "True"}, {type: PodReadyToStartContainers, status: ` +
		`"True"}, `
	ready = `{type: Ready, status: "True", lastTransitionTime: "2026-11-23T11:58:00Z"}]`
)

// waits is a pod whose container c waits.
func waits(container, reason, message, more string) string {
	return fmt.Sprintf("Pod ns/p: {spec: {nodeName: 'n', containers: [%s]}, status: {phase: Pending, conditions: [{type: "+
		"PodReadyToStartContainers, status: \"True\"}], containerStatuses: [{name: c, state: {waiting: {reason: %s, message: %q}}%s}]}}",
		container, reason, message, more)
}

// ended is a pod in a crash loop.
func ended(container, terminated string) string {
	return waits(container, "CrashLoopBackOff", "back-off 10s restarting failed container=c pod=p_ns(u)",
		", restartCount: 4, lastState: {terminated: {"+terminated+
			", startedAt: \"2026-11-23T11:59:00Z\", finishedAt: \"2026-11-23T11:59:02Z\"}}")
}

// unplaced is a pod that the scheduler refused.
func unplaced(spec, message string) string {
	return fmt.Sprintf("Pod ns/p: {spec: {schedulerName: default-scheduler, containers: [{name: c, image: i%s}]%s}, status: {phase: "+
		"Pending, "+
		"conditions: [{type: PodScheduled, status: \"False\", reason: Unschedulable, message: %q}]}}", "", spec, message)
}

const (
	node = `Node n: {spec: {}, status: {allocatable: {cpu: "2", memory: 4Gi, pods: "110"}, conditions: [{type: Ready, status: "True"}]}}`
	// pull is how the agent tells of a pull that failed.
	pull = `Back-off pulling image "reg/x:1": ErrImagePull: rpc error: code = `
)

// cases are a cause each: the objects as the real components write them, and
// what the first line must say.
var cases = []struct{ name, subject, objects, code, cause string }{
	{"image not found", "Pod ns/p", waits("{name: c, image: 'reg/x:1'}", "ImagePullBackOff", pull+`NotFound desc = reg/x:1: not found`, ""),
		"ImageNotFound", "image reg/x:1 of container c: the registry has no such image or tag"},
	{"registry unknown", "Pod ns/p", waits("{name: c, image: 'reg/x:1'}", "ErrImagePull", "dial tcp: lookup reg: no such host", ""),
		"RegistryUnknown", "image reg/x:1 of container c: the registry's host name does not resolve on node n"},
	{"denied", "Pod ns/p", waits("{name: c, image: 'reg/x:1'}", "ErrImagePull", "unexpected status: 401 Unauthorized", ""), "ImageDenied",
		"image reg/x:1 of container c: the registry refuses it"},
	{"pull secret", "Pod ns/p", strings.Replace(waits("{name: c, image: 'reg/x:1'}", "ErrImagePull", "401", ""), "nodeName: 'n'",
		"nodeName: 'n', imagePullSecrets: [{name: keys}]", 1) +
		"\nevent Pod ns/p FailedToRetrieveImagePullSecret: Unable to retrieve some image pull secrets (keys)",
		"PullSecretMissing", "image reg/x:1 of container c: image pull Secret keys cannot be read in namespace ns"},
	{"never", "Pod ns/p", waits("{name: c, image: x}", "ErrImageNeverPull",
		"Container image \"x\" is not present with pull policy of Never", ""),
		"ImageNeverPull", "image x of container c: it is not on node n and imagePullPolicy is Never"},
	{"config map", "Pod ns/p", waits("{name: c}", "CreateContainerConfigError", `configmap "words" not found`, ""), "ConfigMapMissing",
		"ConfigMap words does not exist in namespace ns; container c needs it"},
	{"secret key", "Pod ns/p", waits("{name: c}", "CreateContainerConfigError", "couldn't find key zz in Secret ns/keys", ""), "KeyMissing",
		"Secret keys has no key zz, which env of container c names"},
	{"volume secret", "Pod ns/p",
		`Pod ns/p: {spec: {nodeName: 'n', containers: [{name: c}], volumes: [{name: v, secret: {secretName: tls}}]}, status: {phase: ` +
			`Pending}}
		event Pod ns/p FailedMount: MountVolume.SetUp failed for volume "v" : secret "tls" not found`, "SecretMissing",
		"Secret tls does not exist in namespace ns; volume v needs it"},
	{"multi-attach", "Pod ns/p", `Pod ns/p: {spec: {nodeName: 'n', containers: [{name: c}], volumes: [{name: v}]}, status: {phase: Pending}}
		event Pod ns/p FailedAttachVolume: Multi-Attach error for volume "pv-1" Volume is already exclusively attached to one node and ` +
		`can't be attached to another`,
		"MultiAttach", "volume pv-1 is attached to another node and is ReadWriteOnce"},
	{"oom", "Pod ns/p", ended("{name: c, resources: {limits: {memory: 64Mi}}}", "reason: OOMKilled, exitCode: 137"), "OOMKilled",
		"container c was OOMKilled: it used more memory than it may (its limit is 64Mi)"},
	{"crash", "Pod ns/p", ended("{name: c}", "reason: Error, exitCode: 3") + "\nlog c: panic: no database", "CrashLoop",
		"container c exits with code 3 after 2s"},
	{"signal", "Pod ns/p", ended("{name: c}", "reason: Error, exitCode: 139"), "Signal",
		"container c was ended by SIGSEGV (exit code 139)"},
	{"command", "Pod ns/p", ended("{name: c, image: x, command: [/no/such]}",
		`reason: StartError, exitCode: 128, message: 'exec: "/no/such": stat /no/such: no such file or directory'`), "CommandNotFound",
		"command /no/such of container c is not in image x"},
	{"exits zero", "Pod ns/p", ended("{name: c}", "reason: Completed, exitCode: 0"), "ExitsAtOnce",
		"container c exits with 0 after 2s and restartPolicy"},
	{"liveness", "Pod ns/p", ended("{name: c, livenessProbe: {tcpSocket: {port: 80}}}", "exitCode: 137") + `
		event Pod ns/p Unhealthy: Liveness probe failed: dial tcp 10.0.0.1:80: connect: connection refused
		event Pod ns/p Killing: Container c failed liveness probe, will be restarted`, "LivenessProbe",
		"liveness probe of container c fails (TCP :80), so the agent restarts it: dial tcp"},
	{"readiness", "Pod ns/p", `Pod ns/p: {spec: {nodeName: 'n', containers: [{name: c, readinessProbe: {httpGet: {port: 80, path: ` +
		`/up}}}]}, ` + running +
		`{type: Ready, status: "False"}], containerStatuses: [{name: c, ready: false, started: true, containerID: x, state: {running: ` +
		`{}}}]}}
		event Pod ns/p Unhealthy: Readiness probe failed: HTTP probe failed with statuscode: 503`, "ReadinessProbe",
		"readiness probe of container c fails (GET :80/up), so it gets no traffic: HTTP probe failed with statuscode: 503"},
	{"gate", "Pod ns/p", `Pod ns/p: {spec: {nodeName: 'n', readinessGates: [{conditionType: e.com/lb}], containers: [{name: c}]}, ` +
		running +
		`{type: Ready, status: "False"}]}}`, "ReadinessGate", "readiness gate e.com/lb is not True"},
	{"evicted", "Pod ns/p", `Pod ns/p: {spec: {nodeName: 'n'}, status: {phase: Failed, reason: Evicted, message: "The node was low on ` +
		`resource: memory. Threshold quantity: 100Mi, available: 80Mi. "}}`,
		"Evicted", "evicted from node n: it was low on memory (Threshold quantity: 100Mi, available: 80Mi."},
	{"refused by node", "Pod ns/p",
		`Pod ns/p: {spec: {nodeName: 'n'}, status: {phase: Failed, reason: OutOfcpu, message: "Node didn't have enough resource: cpu"}}`,
		"RefusedByNode", "node n refused the pod: OutOfcpu: Node didn't have enough resource: cpu"},
	{"cpu", "Pod ns/p", strings.Replace(unplaced("", "0/1 nodes are available: 1 Insufficient cpu."), "image: i",
		"image: i, resources: {requests: {cpu: 1500m}}", 1) +
		"\n" + node + "\nPod ns/q: {metadata: {uid: q}, spec: {nodeName: 'n', containers: [{name: c, resources: {requests: {cpu: " +
		"'1'}}}]}, status: {phase: Running}}",
		"NoNodeFits", "the only node n does not fit: Insufficient cpu: asks 1500m, 1 of 2 is free"},
	{"taint", "Pod ns/p", unplaced("", "0/1 nodes are available: 1 node(s) had untolerated taint(s).") + "\n" +
		strings.Replace(node, "spec: {}", "spec: {taints: [{key: gpu, value: a, effect: NoSchedule}]}", 1), "NoNodeFits",
		"the only node n does not fit: taint gpu=a:NoSchedule is not tolerated"},
	{"cordoned", "Pod ns/p", unplaced("", "0/1 nodes are available: 1 node(s) were unschedulable.") + "\n" +
		strings.Replace(node, "spec: {}", "spec: {unschedulable: true}", 1), "NoNodeFits", "the only node n does not fit: cordoned"},
	{"selector", "Pod ns/p", unplaced(", nodeSelector: {disk: fast}", "0/1 nodes are available: 1 node(s) didn't match.") + "\n" + node,
		"NoNodeFits",
		"the only node n does not fit: nodeSelector wants label disk=fast"},
	{"spread", "Pod ns/p", unplaced("", "0/1 nodes are available: 1 node(s) didn't match pod topology spread constraints.") + "\n" + node,
		"TopologySpread", "no node fits: topologySpreadConstraints would be violated"},
	{"claim missing", "Pod ns/p", unplaced("", `0/1 nodes are available: persistentvolumeclaim "data" not found.`), "ClaimMissing",
		"PersistentVolumeClaim data does not exist in namespace ns"},
	{"scheduler", "Pod ns/p", `Pod ns/p: {spec: {schedulerName: moon, containers: [{name: c}]}, status: {phase: Pending}}`,
		"SchedulerUnknown",
		"no scheduler named moon has looked at the pod in 5m"},
	{"node gone", "Pod ns/p", `Pod ns/p: {metadata: {deletionTimestamp: "2026-11-23T11:58:00Z"}, spec: {nodeName: 'n'}, status: {phase: ` +
		`Running}}
		absent Node n`, "TerminatingNodeLost", "pod cannot end: its node n does not exist any more"},
	{"pod finalizer", "Pod ns/p",
		`Pod ns/p: {metadata: {deletionTimestamp: "2026-11-23T11:58:00Z", finalizers: [e.com/f]}, status: {phase: Running}}`,
		"TerminatingFinalizer", "finalizer e.com/f of the pod holds its deletion"},
	{"grace", "Pod ns/p", `Pod ns/p: {metadata: {deletionTimestamp: "2026-11-23T12:00:20Z", deletionGracePeriodSeconds: 30}, spec: ` +
		`{nodeName: 'n'}, status: {phase: Running}}`,
		"TerminatingGrace", "pod is in its grace period (terminationGracePeriodSeconds 30, 20s left)"},
	{"budget blocks", "Pod ns/p", `Pod ns/p: {metadata: {labels: {a: b}}, spec: {nodeName: 'n'}, ` + running + ready + `}}
		PodDisruptionBudget ns/b: {spec: {selector: {matchLabels: {a: b}}}, status: {expectedPods: 1, currentHealthy: 1, desiredHealthy: ` +
		`1, disruptionsAllowed: 0}}`,
		"BudgetBlocks", "the pod is well, but PodDisruptionBudget b allows no eviction of it: 1 healthy, 1 needed"},
	{"healthy", "Pod ns/p", `Pod ns/p: {spec: {nodeName: 'n'}, ` + running + ready + `}}`, "Healthy",
		"nothing is wrong: the pod is Running and Ready since 2m"},

	{"silent node", "Node n", `Node n: {status: {conditions: [{type: Ready, status: Unknown, reason: NodeStatusUnknown, message: Kubelet ` +
		`stopped posting node status.}]}}
		Lease kube-node-lease/n: {spec: {renewTime: "2026-11-23T11:56:00.000000Z"}}`, "NodeSilent",
		"agent of node n stopped renewing its Lease 4m ago"},
	{"runtime down", "Node n",
		`Node n: {status: {conditions: [{type: Ready, status: "False", message: "container runtime is down: no answer to Status since ` +
			`11:59"}]}}`,
		"NodeRuntime", "container runtime of node n is down"},
	{"cni", "Node n", `Node n: {status: {conditions: [{type: Ready, status: "False", message: "container runtime network not ready: ` +
		`NetworkReady=false cni config"}]}}`,
		"NodeNetwork", "network plugin of node n is not ready"},
	{"clock", "Node n", `Node n: {status: {conditions: [{type: Ready, status: "True"}]}}
		Lease kube-node-lease/n: {spec: {renewTime: "2026-11-23T12:10:00.000000Z"}}`, "ClockSkew",
		"the clock of node n is 10m0s ahead of this host's"},
	{"pressure", "Node n", `Node n: {status: {conditions: [{type: Ready, status: "True"}, {type: MemoryPressure, status: "True", ` +
		`lastTransitionTime: "2026-11-23T11:59:00Z"}]}}`,
		"MemoryPressure", "node n is short of memory (MemoryPressure) since 60s"},

	{"no endpoints", "Service ns/s", `Service ns/s: {spec: {selector: {app: wbe}, ports: [{port: 80}]}}
		Pod ns/web: {metadata: {labels: {app: web}}}`, "NoPodMatches", "its selector app=wbe matches no pod in namespace ns"},
	{"port name", "Service ns/s", `Service ns/s: {spec: {selector: {app: web}, ports: [{port: 80, targetPort: http}]}}
		Pod ns/web: {metadata: {labels: {app: web}}, spec: {containers: [{name: c}]}}`, "PortNameUnknown",
		`targetPort "http" of port 80 names no container port`},
	{"unready endpoints", "Service ns/s", `Service ns/s: {spec: {selector: {app: web}, ports: [{port: 80}]}}
		` + strings.Replace(waits("{name: c}", "CreateContainerConfigError", `secret "k" not found`, ""), "{spec",
		"{metadata: {labels: {app: web}}, spec", 1),
		"SecretMissing", "no ready endpoint: 1 pods match, none is Ready; pod p: Secret k does not exist"},
	{"policy drops", "Service ns/s", `Service ns/s: {spec: {selector: {app: web}, ports: [{port: 80, targetPort: 80}]}}
		Pod ns/web: {metadata: {labels: {app: web}}, spec: {containers: [{name: c}]}}
		EndpointSlice ns/s-1: {metadata: {labels: {kubernetes.io/service-name: s}}, addressType: IPv4, ports: [], endpoints: ` +
		`[{addresses: [10.0.0.1], conditions: {ready: true}}]}
		NetworkPolicy ns/deny: {spec: {podSelector: {}, policyTypes: [Ingress]}}`, "PolicyDrops",
		"NetworkPolicy deny drops what is sent to pod web: no ingress rule admits anybody"},
	{"load balancer", "Service ns/s", `Service ns/s: {spec: {type: LoadBalancer, loadBalancerClass: e.com/lb, ports: [{port: 80}]}}
		EndpointSlice ns/s-1: {metadata: {labels: {kubernetes.io/service-name: s}}, addressType: IPv4, ports: [], endpoints: ` +
		`[{addresses: [10.0.0.1]}]}`,
		"LoadBalancerClass", "load balancer is pending: no controller answers for loadBalancerClass e.com/lb"},

	{"class missing", "PersistentVolumeClaim ns/c", `PersistentVolumeClaim ns/c: {spec: {storageClassName: x}, status: {phase: Pending}}
		absent StorageClass x`, "ClassMissing", "StorageClass x does not exist"},
	{"no class", "PersistentVolumeClaim ns/c", `PersistentVolumeClaim ns/c: {status: {phase: Pending}}`, "NoClass",
		"it names no StorageClass, there is no default class"},
	{"first consumer", "PersistentVolumeClaim ns/c", `PersistentVolumeClaim ns/c: {spec: {storageClassName: x}, status: {phase: Pending}}
		StorageClass x: {provisioner: p, volumeBindingMode: WaitForFirstConsumer}`, "WaitForFirstConsumer",
		"it waits for its first pod: class x"},
	{"in use", "PersistentVolumeClaim ns/c",
		`PersistentVolumeClaim ns/c: {metadata: {deletionTimestamp: "2026-11-23T11:58:00Z", finalizers: [kubernetes.io/pvc-protection]}, ` +
			`status: {phase: Bound}}
		Pod ns/p: {spec: {volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]}}`, "ClaimInUse",
		"its deletion waits: pod p still uses it"},

	{"quota", "ReplicaSet ns/r",
		`ReplicaSet ns/r: {spec: {replicas: 2}, status: {replicas: 0, conditions: [{type: ReplicaFailure, status: "True", message: 'pods ` +
			`"r-1" is forbidden: exceeded quota: small, requested: pods=1, used: pods=2, limited: pods=2'}]}}`,
		"Quota", "pods of ReplicaSet r are refused: ResourceQuota small: exceeded quota: small, requested: pods=1"},
	{"pod security", "StatefulSet ns/s", `StatefulSet ns/s: {spec: {replicas: 1}}
		event StatefulSet ns/s FailedCreate: create Pod s-0 in StatefulSet s failed error: pods "s-0" is forbidden: violates PodSecurity ` +
		`"restricted:latest": runAsNonRoot != true`,
		"PodSecurity", "pods of StatefulSet s are refused: namespace label pod-security.kubernetes.io/enforce: violates PodSecurity"},
	{"webhook", "DaemonSet ns/d", `DaemonSet ns/d: {status: {desiredNumberScheduled: 1}}
		event DaemonSet ns/d FailedCreate: Error creating: Internal error occurred: failed calling webhook "hook.e.com": failed to call ` +
		`webhook: connection refused`,
		"Webhook", "pods of DaemonSet d are refused: webhook hook.e.com: "},
	{"limit range", "ReplicaSet ns/r", `ReplicaSet ns/r: {spec: {replicas: 1}}
		event ReplicaSet ns/r FailedCreate: Error creating: pods "r-1" is forbidden: maximum cpu usage per Container is 100m, but limit ` +
		`is 2`,
		"LimitRange", "pods of ReplicaSet r are refused: a LimitRange of the namespace: maximum cpu usage per Container"},
	{"paused", "Deployment ns/d", `Deployment ns/d: {spec: {paused: true}}`, "Paused", "it is paused (spec.paused)"},
	{"progress", "Deployment ns/d",
		`Deployment ns/d: {status: {conditions: [{type: Progressing, status: "False", reason: ProgressDeadlineExceeded, message: x has ` +
			`timed out progressing.}]}}`,
		"ProgressDeadlineExceeded", "it does not progress: x has timed out"},
	{"backoff limit", "Job ns/j",
		`Job ns/j: {metadata: {uid: ju}, spec: {backoffLimit: 0}, status: {failed: 1, conditions: [{type: Failed, status: "True", ` +
			`reason: BackoffLimitExceeded}]}}
		Pod ns/j-1: {metadata: {ownerReferences: [{kind: Job, name: j, uid: ju, controller: true}]}, spec: {containers: [{name: c}]}, ` +
			`status: {phase: Failed, containerStatuses: [{name: c, state: {terminated: {exitCode: 7, reason: Error}}}]}}`,
		"BackoffLimitExceeded", "more pods failed than backoffLimit 0 allows; pod j-1: container c exits with code 7"},
	{"job deadline", "Job ns/j",
		`Job ns/j: {spec: {activeDeadlineSeconds: 5}, status: {conditions: [{type: Failed, status: "True", reason: DeadlineExceeded}]}}`,
		"DeadlineExceeded", "it ran longer than activeDeadlineSeconds 5"},
	{"failure policy", "Job ns/j",
		`Job ns/j: {status: {conditions: [{type: Failed, status: "True", reason: PodFailurePolicy, message: Container c for pod ns/j-1 ` +
			`failed with exit code 42 matching FailJob rule at index 0}]}}`,
		"PodFailurePolicy", "podFailurePolicy ended it: Container c for pod ns/j-1 failed with exit code 42"},
	{"hpa metrics", "HorizontalPodAutoscaler ns/h",
		`HorizontalPodAutoscaler ns/h: {status: {conditions: [{type: ScalingActive, status: "False", reason: FailedGetResourceMetric, ` +
			`message: "the HPA was unable to compute the replica count: failed to get cpu utilization: missing request for cpu in ` +
			`container c of Pod d-1"}]}}`,
		"FailedGetResourceMetric",
		"it cannot scale (FailedGetResourceMetric): failed to get cpu utilization: missing request for cpu in container c"},
	{"namespace finalizer", "Namespace x",
		`Namespace x: {metadata: {deletionTimestamp: "2026-11-23T11:58:00Z"}, status: {phase: Terminating, conditions: [{type: ` +
			`NamespaceFinalizersRemaining, status: "True", message: "Some content in the namespace has finalizers remaining: e.com/f in ` +
			`1 resource instances"}]}}
		Partial x/held: {kind: Widget, metadata: {deletionTimestamp: "2026-11-23T11:58:00Z", finalizers: [e.com/f]}}`, "Finalizer",
		"widget held holds the namespace: finalizer e.com/f is not removed"},
	{"namespace discovery", "Namespace x",
		`Namespace x: {metadata: {deletionTimestamp: "2026-11-23T11:58:00Z"}, status: {conditions: [{type: ` +
			`NamespaceDeletionDiscoveryFailure, status: "True", message: "Discovery failed for some groups"}]}}
		APIService v1.e.com: {spec: {service: {namespace: a, name: b}}, status: {conditions: [{type: Available, status: "False", reason: ` +
			`ServiceNotFound, message: service/b in "a" is not present}]}}`,
		"APIServiceDown", "the namespace cannot be emptied: APIService v1.e.com is not available: ServiceNotFound"},
	{"csr", "CertificateSigningRequest c", `CertificateSigningRequest c: {spec: {signerName: e.com/s}}`, "NotApproved",
		"nobody has approved it"},
	{"csr unsigned", "CertificateSigningRequest c",
		`CertificateSigningRequest c: {spec: {signerName: e.com/s}, status: {conditions: [{type: Approved, status: "True"}]}}`,
		"NotSigned", "it is approved, but signer e.com/s has not signed it: berth does not run that signer"},
	{"ingress class", "Ingress ns/i", `Ingress ns/i: {spec: {ingressClassName: moon}}
		absent IngressClass moon`, "ClassMissing", "IngressClass moon does not exist"},
	{"nothing", "Pod ns/ghost", "absent Pod ns/ghost", "NeverSeen",
		"Pod ns/ghost does not exist, and neither journal nor events remember it"},
}

// TestFirstLineNamesTheCause asks about each cause, and that no line that can
// be broken is wider than 80 columns.
func TestFirstLineNamesTheCause(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := world(t, c.subject, c.objects)
			a := Explain(w)
			if a.Code != c.code || !strings.HasPrefix(a.Cause, c.cause) {
				t.Errorf("%s: %s\nwant %s: %s", a.Code, a.Cause, c.code, c.cause)
			}
			var b strings.Builder
			if err := a.Write(&b); err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(b.String()) {
				if utf8.RuneCountInString(strings.TrimSpace(line)) > Width && strings.Contains(strings.TrimSpace(line), " ") {
					t.Errorf("wider than %d: %s", Width, line)
				}
			}
			for range Rounds {
				for _, r := range Next(w) {
					w.Done[r] = ""
				}
			}
			if len(w.Done) > maxReads {
				t.Errorf("%d requests, at most %d may be", len(w.Done), maxReads)
			}
			if left := Next(w); len(left) > 0 {
				t.Errorf("after %d rounds it still wants %v", Rounds, left)
			}
		})
	}
}

// TestGoneFromTheJournal: what does not exist any more is told by its last
// decision, and so is all while the API server is down.
func TestGoneFromTheJournal(t *testing.T) {
	w := world(t, "Pod ns/p", "absent Pod ns/p")
	w.Records = []journal.Record{
		{Time: now.Add(-time.Minute), Part: "eviction", Object: w.Subject, Decision: "deleted",
			Because: []journal.Fact{{Name: "node", Value: "n"}, {Name: "cause", Value: "taint node.kubernetes.io/unreachable:NoExecute"}}},
		{Time: now, Part: "agent", Object: w.Subject, Decision: "sandbox stopped"},
	}
	if a := Explain(w); a.Cause != "Pod ns/p does not exist any more; last decision: deleted (eviction: cause taint "+
		"node.kubernetes.io/unreachable:NoExecute)" || a.State != Missing {
		t.Errorf("%s: %s", a.State, a.Cause)
	}
	w.APIError = "dial tcp 127.0.0.1:6443: connect: connection refused"
	w.Host = []journal.Fact{{Name: "store", Value: "no space left on device"}}
	a := Explain(w)
	if a.State != Unknown || !strings.HasPrefix(a.Cause,
		"the API server does not answer (store: no space left on device); last decision about") {
		t.Errorf("%s: %s", a.State, a.Cause)
	}
	if len(Next(w)) != 0 {
		t.Error("an API that does not answer is asked again")
	}
}

// TestUnreadIsNamed: what the caller may not read is said, and the subject that
// may not be read is the answer.
func TestUnreadIsNamed(t *testing.T) {
	w := world(t, "Pod ns/p", waits("{name: c}", "CreateContainerConfigError", `secret "k" not found`, ""))
	w.Done[Read{Kind: "Node", Name: "n"}] = "forbidden"
	if a := Explain(w); len(a.Unread) != 1 || a.Unread[0] != "Node n: forbidden" || a.Code != "SecretMissing" {
		t.Errorf("%s, unread %v", a.Code, a.Unread)
	}
	s := world(t, "Service ns/s", `Service ns/s: {spec: {selector: {app: web}, ports: [{port: 80}]}}`)
	s.Done[Read{Kind: "Pod", Namespace: "ns", Labels: "app=web"}] = "pods is forbidden"
	if a := Explain(s); a.Code != "NotReadable" || !strings.Contains(a.Cause, "list of Pod in ns may not be read") {
		t.Errorf("pods that may not be read count as none: %s: %s", a.Code, a.Cause)
	}
	w.Done[Read{Kind: "Pod", Namespace: "ns", Name: "p"}] = `pods "p" is forbidden`
	if a := Explain(w); a.Code != "NotReadable" {
		t.Errorf("%s: %s", a.Code, a.Cause)
	}
}
