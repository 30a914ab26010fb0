package agent_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/berth-dev/berth/internal/agent/config"
	"github.com/berth-dev/berth/internal/agent/launch"
	"github.com/berth-dev/berth/internal/cluster/containerd/livetest"
	"github.com/berth-dev/berth/internal/control/api/apitest"
)

// knownMetrics are the names, and where they matter the labels, that dashboards
// and alerts of nodes use. A name is kubelet_NAME unless it begins with "/".
const knownMetrics = `
running_pods running_containers{container_state} desired_pods{static} active_pods{static} mirror_pods
working_pods{lifecycle,config,static} orphaned_runtime_pods_total restarted_pods_total{static}
pod_start_duration_seconds pod_start_sli_duration_seconds pod_start_total_duration_seconds
pod_worker_duration_seconds{operation_type} pod_worker_start_duration_seconds pod_status_sync_duration_seconds
pleg_relist_duration_seconds pleg_relist_interval_seconds pleg_last_seen_seconds pleg_discard_events
runtime_operations_total{operation_type} runtime_operations_errors_total{operation_type}
runtime_operations_duration_seconds{operation_type}
started_pods_total started_pods_errors_total started_containers_total{container_type}
started_containers_errors_total{container_type,code} terminated_containers_total{container_type,exit_code,reason}
run_podsandbox_duration_seconds{runtime_handler} image_pull_duration_seconds{image_size_in_bytes}
evictions{eviction_signal} eviction_stats_age_seconds{eviction_signal} preemptions{preemption_signal} node_name{node}
cgroup_manager_duration_seconds{operation_type} cgroup_version
volume_stats_capacity_bytes{namespace,persistentvolumeclaim} volume_stats_available_bytes{namespace,persistentvolumeclaim}
volume_stats_used_bytes{namespace,persistentvolumeclaim} volume_stats_inodes{namespace,persistentvolumeclaim}
volume_stats_inodes_free{namespace,persistentvolumeclaim} volume_stats_inodes_used{namespace,persistentvolumeclaim}
server_expiration_renew_errors certificate_manager_client_ttl_seconds certificate_manager_server_ttl_seconds
certificate_manager_client_expiration_renew_errors
http_requests_total{method,path,server_type,long_running} http_requests_duration_seconds{method,path,server_type,long_running}
http_inflight_requests{method,path,server_type,long_running}
device_plugin_registration_total{resource_name} device_plugin_alloc_duration_seconds{resource_name}
cpu_manager_pinning_requests_total cpu_manager_pinning_errors_total cpu_manager_shared_pool_size_millicores
cpu_manager_exclusive_cpu_allocation_count cpu_manager_allocation_per_numa{numa_node}
memory_manager_pinning_requests_total memory_manager_pinning_errors_total
topology_manager_admission_requests_total topology_manager_admission_errors_total topology_manager_admission_duration_ms
container_aligned_compute_resources_count{scope,boundary} container_aligned_compute_resources_failure_count{scope,boundary}
pod_resources_endpoint_requests_total{server_api_version} pod_resources_endpoint_requests_list{server_api_version}
pod_resources_endpoint_requests_get{server_api_version} pod_resources_endpoint_requests_get_allocatable{server_api_version}
pod_resources_endpoint_errors_list{server_api_version} pod_resources_endpoint_errors_get{server_api_version}
pod_resources_endpoint_errors_get_allocatable{server_api_version}
admission_rejections_total{reason} image_garbage_collected_total{reason}
graceful_shutdown_start_time_seconds graceful_shutdown_end_time_seconds
node_startup_pre_kubelet_duration_seconds node_startup_pre_registration_duration_seconds
node_startup_registration_duration_seconds node_startup_post_registration_duration_seconds node_startup_duration_seconds
container_log_filesystem_used_bytes{uid,namespace,pod,container} lifecycle_handler_http_fallbacks_total
pod_pending_resizes{reason} pod_in_progress_resizes pod_resize_duration_milliseconds{success}
/dra_operations_duration_seconds{operation_name,is_error} /dra_resource_claims_in_use{driver_name}
/dra_grpc_operations_duration_seconds{driver_name,method_name,grpc_status_code}
/storage_operation_duration_seconds /volume_manager_total_volumes{plugin_name,state}
/csi_operations_seconds{driver_name,method_name,grpc_status_code,migrated}
/rest_client_requests_total{code,method,host} /rest_client_request_duration_seconds{verb,host}
/kubernetes_build_info{major,minor,git_version,go_version,compiler,platform} /kubernetes_feature_enabled{name,stage}
/process_cpu_seconds_total /process_resident_memory_bytes /process_open_fds /process_start_time_seconds
/go_goroutines /go_memstats_alloc_bytes /go_info{version}
`

// recorder is a registry that remembers the names of what was registered: a
// metric with labels is served only once something happened.
type recorder struct {
	*prometheus.Registry
	mu    sync.Mutex
	names map[string]map[string]bool // labels by name
}

var described = regexp.MustCompile(`fqName: "([^"]*)".*constLabels: \{([^}]*)\}, variableLabels: \{([^}]*)\}`)

func (r *recorder) Register(c prometheus.Collector) error {
	descs := make(chan *prometheus.Desc)
	go func() { c.Describe(descs); close(descs) }()
	r.mu.Lock()
	for d := range descs {
		m := described.FindStringSubmatch(d.String())
		if m == nil {
			continue
		}
		labels := map[string]bool{}
		for l := range strings.SplitSeq(m[3], ",") {
			labels[strings.TrimSpace(l)] = true
		}
		for l := range strings.SplitSeq(m[2], ",") {
			name, _, _ := strings.Cut(l, "=")
			labels[strings.TrimSpace(name)] = true
		}
		r.names[m[1]] = labels
	}
	r.mu.Unlock()
	return r.Registry.Register(c)
}

func (r *recorder) MustRegister(list ...prometheus.Collector) {
	for _, c := range list {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}

// TestMetricNames launches an agent as the command does, beside a real API
// server and a real runtime, and looks for each name and label in what it
// registered.
func TestMetricNames(t *testing.T) {
	endpoint := livetest.Endpoint(t)
	r := &recorder{Registry: prometheus.NewRegistry(), names: map[string]map[string]bool{}}
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	stop := launchAgent(t, endpoint, r)
	defer stop()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range families {
		labels := map[string]bool{}
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels[l.GetName()] = true
		}
		r.names[f.GetName()] = labels
	}
	for field := range strings.FieldsSeq(knownMetrics) {
		name, labels, _ := strings.Cut(strings.TrimSuffix(field, "}"), "{")
		if rest, ok := strings.CutPrefix(name, "/"); ok {
			name = rest
		} else {
			name = "kubelet_" + name
		}
		have, ok := r.names[name]
		if !ok {
			t.Errorf("no metric %s", name)
			continue
		}
		for label := range strings.SplitSeq(labels, ",") {
			if label != "" && !have[label] {
				t.Errorf("metric %s has no label %s, only %v", name, label, have)
			}
		}
	}
}

// launchAgent runs an agent until stop and returns once its node is Ready.
func launchAgent(t *testing.T, endpoint string, registry launch.Registry) (stop func()) {
	t.Helper()
	env := apitest.StartEnv(t)
	admin := kubernetes.NewForConfigOrDie(env.Config)
	dir := t.TempDir()
	user := env.As(t, "system:node:n1", "system:nodes")
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"c": {Server: user.Host, CertificateAuthority: user.CAFile}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": {ClientCertificate: user.CertFile, ClientKey: user.KeyFile}},
		Contexts:  map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}}, CurrentContext: "x",
	}, kubeconfig); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, `kind: KubeletConfiguration
apiVersion: kubelet.config.k8s.io/v1beta1
containerRuntimeEndpoint: %s
cgroupRoot: /berth-test-names
podLogsDir: %s/logs
port: %d
healthzPort: 0
failCgroupV1: false
evictionHard: {memory.available: 1Mi, nodefs.available: 1Mi, imagefs.available: 1Mi}
imageGCHighThresholdPercent: 100
authentication: {x509: {clientCAFile: %s/pki/ca.crt}}
`, endpoint, dir, freePort(t), env.Dir), 0o644); err != nil {
		t.Fatal(err)
	}
	set := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	flags := config.AddFlags(set)
	if err := set.Parse([]string{"--config", file, "--kubeconfig", kubeconfig, "--root-dir", filepath.Join(dir, "root"), "--cert-dir",
		filepath.Join(dir, "pki"), "--hostname-override", "n1"}); err != nil {
		t.Fatal(err)
	}
	effective, err := config.Load(flags)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	done := make(chan error, 1)
	go func() {
		done <- launch.Run(ctx, launch.Config{Effective: effective,
			Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})), Version: "v1.37.2+berth",
			Metrics: registry})
	}()
	for {
		n, err := admin.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
		if err == nil && len(n.Status.Conditions) > 0 {
			break
		}
		select {
		case err := <-done:
			t.Fatalf("the agent ended: %v", err)
		case <-ctx.Done():
			t.Fatalf("the node does not come: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		dropCgroups("berth-test-names")
	}
}

// dropCgroups removes what an agent's tree leaves by design.
func dropCgroups(root string) {
	for _, sub := range []string{"/kubepods/burstable", "/kubepods/besteffort", "/kubepods", ""} {
		for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
			found, _ := filepath.Glob(mount + "/" + root + sub)
			for _, dir := range found {
				_ = os.Remove(dir)
			}
		}
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
