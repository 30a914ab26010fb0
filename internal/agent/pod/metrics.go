package pod

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/agent/runtime"
)

// metrics are the agent's figures about pods, under the names that dashboards
// of nodes know where there is one.
type metrics struct {
	actions, workerRounds, statusSync, sandboxes *prometheus.HistogramVec
	start, startSLI, startTotal, workerStart     prometheus.Histogram

	resizes *prometheus.HistogramVec

	startedPods, startedPodErrors, orphans         prometheus.Counter
	startedContainers, containerErrors, terminated *prometheus.CounterVec
	restartedPods                                  *prometheus.CounterVec

	gauges
}

// gauges are counted when someone asks.
type gauges struct {
	runningPods, mirrorPods                      *prometheus.Desc
	runningContainers, desiredPods, activePods   *prometheus.Desc
	workingPods, pendingResizes, resizesUnderWay *prometheus.Desc
}

func newMetrics() *metrics {
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(0.001,
			2.5, 14)}, labels)
	}
	starting := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: []float64{0.1, 0.25, 0.5, 1, 2, 3, 4, 5, 6,
			8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}})
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	out := &metrics{
		actions: histogram("berth_agent_pod_action_duration_seconds", "Time an action on a pod took, by kind.", "kind"),
		workerRounds: histogram("kubelet_pod_worker_duration_seconds", "Seconds that one look at a pod took, by what it was for.",
			"operation_type"),
		statusSync: histogram("kubelet_pod_status_sync_duration_seconds", "Seconds from a changed status to the API's answer."),
		sandboxes:  histogram("kubelet_run_podsandbox_duration_seconds", "Seconds that starting a sandbox took.", "runtime_handler"),
		start:      starting("kubelet_pod_start_duration_seconds", "Seconds from first seeing a pod to its containers running."),
		startSLI: starting("kubelet_pod_start_sli_duration_seconds",
			"Seconds from a pod's creation to its containers running, without pulling images and running init containers."),
		workerStart: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "kubelet_pod_worker_start_duration_seconds",
			Help:    "Seconds from seeing a pod to its first round of work.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 10)}),
		startTotal: starting("kubelet_pod_start_total_duration_seconds", "Seconds from a pod's creation to its containers running."),

		resizes: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "kubelet_pod_resize_duration_milliseconds",
			Help: "Milliseconds that giving running containers other resources took.", Buckets: prometheus.ExponentialBuckets(1, 2.5, 12)},
			[]string{"success"}),

		startedPods: prometheus.NewCounter(prometheus.CounterOpts{Name: "kubelet_started_pods_total",
			Help: "Sandboxes that were to be started."}),
		startedPodErrors: prometheus.NewCounter(prometheus.CounterOpts{Name: "kubelet_started_pods_errors_total",
			Help: "Sandboxes that could not be started."}),
		orphans: prometheus.NewCounter(prometheus.CounterOpts{Name: "kubelet_orphaned_runtime_pods_total",
			Help: "Pods found in the runtime or on disk that nobody asked for."}),
		startedContainers: counter("kubelet_started_containers_total", "Containers that were to be started, by kind.", "container_type"),
		containerErrors: counter("kubelet_started_containers_errors_total", "Containers that could not be started, by kind and reason.",
			"container_type", "code"),
		terminated: counter("kubelet_terminated_containers_total", "Containers that ended, by kind, exit code and reason.",
			"container_type", "exit_code", "reason"),
		restartedPods: counter("kubelet_restarted_pods_total", "Pods that came back under the same UID.", "static"),

		gauges: gauges{
			runningPods:       desc("kubelet_running_pods", "Pods with a running sandbox."),
			runningContainers: desc("kubelet_running_containers", "Containers in the runtime, by state.", "container_state"),
			desiredPods:       desc("kubelet_desired_pods", "Pods that the agent was asked to run.", "static"),
			activePods:        desc("kubelet_active_pods", "Pods that count against the node's room.", "static"),
			mirrorPods:        desc("kubelet_mirror_pods", "Mirror pods in the API."),
			workingPods:       desc("kubelet_working_pods", "Pods that the agent works on.", "lifecycle", "config", "static"),
			pendingResizes:    desc("kubelet_pod_pending_resizes", "Pods that wait for other resources, by reason.", "reason"),
			resizesUnderWay: desc("kubelet_pod_in_progress_resizes",
				"Pods whose other resources were accepted and are not enforced yet."),
		},
	}
	for _, static := range []bool{false, true} {
		out.restartedPods.WithLabelValues(isStatic(static)) // zero is shown
	}
	return out
}

func (x *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{x.actions, x.workerRounds, x.statusSync, x.sandboxes, x.start, x.startSLI, x.startTotal, x.workerStart,
		x.startedPods, x.startedPodErrors, x.resizes,
		x.orphans, x.startedContainers, x.containerErrors, x.terminated, x.restartedPods}
}

// Describe and Collect make the manager a collector of what is true just now:
// counted when someone asks, so that nothing has to be kept in step.

// Describe lists what Collect gives.
func (m *Manager) Describe(out chan<- *prometheus.Desc) {
	x := m.metrics
	for _, d := range []*prometheus.Desc{x.runningPods, x.runningContainers, x.desiredPods, x.activePods, x.mirrorPods, x.workingPods,
		x.pendingResizes, x.resizesUnderWay} {
		out <- d
	}
}

// Collect counts pods and containers.
func (m *Manager) Collect(out chan<- prometheus.Metric) {
	x := m.metrics
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	running := 0
	containers := map[runtime.State]int{}
	for _, uid := range m.cfg.Runtime.Pods() {
		held := m.cfg.Runtime.Pod(uid)
		if held == nil {
			continue
		}
		if len(held.Sandboxes) > 0 && held.Sandboxes[0].Ready {
			running++
		}
		for _, c := range held.Containers {
			containers[c.State]++
		}
	}
	gauge(x.runningPods, running)
	for s, n := range containers {
		gauge(x.runningContainers, n, s.String())
	}
	desired, active, working, pending := map[string]int{"": 0, "true": 0}, map[string]int{"": 0, "true": 0}, noWork(), map[string]int{}
	underWay := 0
	m.mu.Lock()
	mirrors := len(m.mirrors)
	for _, w := range m.workers {
		w.mu.Lock()
		spec := w.spec
		if spec.Removed && w.mirrored {
			mirrors++ // it stays until the pod has ended
		}
		w.mu.Unlock()
		status := &w.current.Load().Status
		kind := workOn(spec, status.Phase, w.ending.Load())
		if kind.config == "desired" {
			desired[kind.static]++
			if !terminal(status.Phase) {
				active[kind.static]++
			}
		}
		working[kind]++
		for _, c := range status.Conditions {
			switch c.Type {
			case v1.PodResizePending:
				pending[c.Reason]++
			case v1.PodResizeInProgress:
				underWay++
			}
		}
	}
	m.mu.Unlock()
	gauge(x.mirrorPods, mirrors)
	gauge(x.resizesUnderWay, underWay)
	for static, n := range desired {
		gauge(x.desiredPods, n, static)
	}
	for static, n := range active {
		gauge(x.activePods, n, static)
	}
	for k, n := range working {
		gauge(x.workingPods, n, k.lifecycle, k.config, k.static)
	}
	for reason, n := range pending {
		gauge(x.pendingResizes, n, reason)
	}
}

// work is what the agent does with a pod, in the words of a metric.
type work struct{ lifecycle, config, static string }

// workOn says how far a pod is and who wants it.
func workOn(spec spec, phase v1.PodPhase, ending bool) work {
	kind := work{"sync", "desired", isStatic(spec.Static)}
	switch {
	case terminal(phase):
		kind.lifecycle = "terminated"
	case ending:
		kind.lifecycle = "terminating"
	}
	switch {
	case spec.Orphan:
		kind.config, kind.static = "runtime_only", "unknown"
	case spec.Removed:
		kind.config = "orphan"
	}
	return kind
}

// noWork has every kind of work, so that those which no one does are shown.
func noWork() map[work]int {
	out := map[work]int{}
	for _, lifecycle := range []string{"sync", "terminating", "terminated"} {
		for _, static := range []string{"", "true"} {
			out[work{lifecycle, "desired", static}] = 0
			out[work{lifecycle, "orphan", static}] = 0
		}
		out[work{lifecycle, "runtime_only", "unknown"}] = 0
	}
	return out
}

// isStatic is the value of the label static.
func isStatic(static bool) string {
	if static {
		return "true"
	}
	return ""
}

// containerType is what metrics call a container's role.
func containerType(pod *v1.Pod, name string) string {
	for _, m := range allContainers(pod, nil, nil) {
		if m.c.Name == name {
			return map[role]string{initContainer: "init_container", sidecarContainer: "init_container", regularContainer: "container",
				ephemeralContainer: "ephemeral_container"}[m.role]
		}
	}
	return "container"
}

// began notes a pod that has come up, once in the life of its worker. Only pods
// that this agent brought up say something.
func (w *worker) began(pod *v1.Pod, plan *plan, now time.Time) {
	if w.cameUp || !w.isNew || plan.Status.Phase != v1.PodRunning {
		return
	}
	for i := range plan.Status.ContainerStatuses {
		if plan.Status.ContainerStatuses[i].State.Running == nil {
			return
		}
	}
	w.cameUp = true
	x := w.m.metrics
	x.start.Observe(now.Sub(w.obs.Met).Seconds())
	if !pod.CreationTimestamp.IsZero() {
		total := now.Sub(pod.CreationTimestamp.Time)
		x.startTotal.Observe(total.Seconds())
		x.startSLI.Observe(max(total-w.waited(plan), 0).Seconds())
	}
}

// waited is how long the start took because of image pulls and init containers.
func (w *worker) waited(plan *plan) time.Duration {
	sum := w.pulling
	for _, c := range plan.Status.InitContainerStatuses {
		if t := c.State.Terminated; t != nil {
			sum += t.FinishedAt.Sub(t.StartedAt.Time)
		}
	}
	return sum
}
