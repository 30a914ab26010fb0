package cluster

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/spf13/pflag"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/internal/agent"
	"github.com/berth-dev/berth/internal/agent/config"
	"github.com/berth-dev/berth/internal/agent/launch"
	"github.com/berth-dev/berth/internal/kube"
	podnetwork "github.com/berth-dev/berth/internal/network"
)

// everything is a configuration in which each field that berth up once ignored,
// and each that host.yaml sets, has a value of its own.
const everything = `
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
tlsMinVersion: VersionTLS13
tlsCipherSuites: [TLS_AES_128_GCM_SHA256]
tlsCurvePreferences: [29]
rotateCertificates: true
serverTLSBootstrap: true
protectKernelDefaults: true
oomScoreAdj: -500
failSwapOn: true
failCgroupV1: true
maxOpenFiles: 123456
enableContentionProfiling: true
contentType: application/json
imageServiceEndpoint: unix:///run/images.sock
registerNode: true
registerWithTaints: [{key: k, value: v, effect: NoSchedule}]
providerID: rack://1
enableControllerAttachDetach: false
serializeImagePulls: true
evictionHard: {memory.available: 1Gi, nodefs.available: 7%, nodefs.inodesFree: 7%, imagefs.available: 7%, imagefs.inodesFree: 7%}
imageGCHighThresholdPercent: 70
imageGCLowThresholdPercent: 60
maxPods: 42
seccompDefault: false
podPidsLimit: 321
systemReserved: {cpu: 100m, memory: 100Mi}
`

// ofTheCluster are the fields that a cluster of our own sets over the file, as
// `berth up --help` says of --agent-config.
var ofTheCluster = []string{
	"port", "healthzPort", "staticPodPath", "podLogsDir", "containerRuntimeEndpoint", // ports and paths
	"authentication.x509.clientCAFile", "cgroupRoot", "cgroupDriver", "clusterDomain", "clusterDNS",
	// Only where the file asks for none at all: a serial pull has no parallels.
	"maxParallelImagePulls",
}

// ofTheRole are the fields of agent.Config in which roles differ on purpose.
var ofTheRole = map[string]string{
	"RootDir":    "below the data directory",
	"LogLinkDir": "several clusters of berth up on a host share no directory of links",
	"Network":    "a stand-alone agent leaves the pod network to others",
	"Guard":      "a stand-alone agent leaves policies and the check of senders to others",
	"Serve":      "a stand-alone agent has flags and a level of logs to show",
	"Journal":    "a stand-alone agent keeps none",
	"Kubelet":    "compared field by field",
}

// TestRolesHonourTheSameConfiguration: what starts an agent (up, join, agent)
// does not change what a KubeletConfiguration means.
func TestRolesHonourTheSameConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	if err := os.WriteFile(file, []byte(everything), 0o600); err != nil {
		t.Fatal(err)
	}
	built := map[string]agent.Config{}
	for _, role := range []Role{RoleWhole, RoleNode} {
		u := newHost(t, role, file)
		cfg, err := u.agentConfig(u.log)
		if err != nil {
			t.Fatal(err)
		}
		built[role.Command()] = buildAgent(t, cfg)
	}
	// The stand-alone agent, as its command line starts it.
	u := newHost(t, RoleWhole, file)
	flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	given := config.AddFlags(flags)
	if err := flags.Parse([]string{"--config=" + file, "--kubeconfig=" + u.files.AgentKubeconfig, "--cert-dir=" + u.Path("pki"),
		"--hostname-override=" + u.NodeName, "--node-ip=" + u.NodeIP}); err != nil {
		t.Fatal(err)
	}
	effective, err := config.Load(given)
	if err != nil {
		t.Fatal(err)
	}
	alone := buildAgent(t, launch.Config{Effective: effective, Log: slog.New(slog.DiscardHandler), Version: kube.Version,
		Metrics:    newRegistry(),
		LogLinkDir: launch.HostLogLinks})

	for role, got := range built {
		t.Run(role, func(t *testing.T) {
			compareKubelet(t, got.Kubelet, alone.Kubelet)
			compareAgent(t, got, alone)
		})
	}
}

// newHost is how a role starts its agent on a host of its own.
func newHost(t *testing.T, role Role, agentConfig string) *up {
	t.Helper()
	u := &up{Config: &Config{
		Settings: Settings{Role: role, NodeName: "n1", ClusterCIDR: "10.1.0.0/16", ServiceCIDR: "10.2.0.0/16",
			ClusterDomain: "cluster.local",
			Network:       podnetwork.None, Ports: DefaultPorts, AgentConfig: agentConfig,
			RuntimeSettings: RuntimeSettings{RuntimeEndpoint: "unix:///run/cri.sock"}},
		DataDir: t.TempDir(), NodeIP: "192.0.2.7",
	}, log: slog.New(slog.DiscardHandler)}
	if err := os.MkdirAll(u.Path("pki"), 0o700); err != nil {
		t.Fatal(err)
	}
	var err error
	if u.files, _, err = u.certificates(time.Now()); err != nil {
		t.Fatal(err)
	}
	return u
}

// buildAgent launches up to the point where the agent would run.
func buildAgent(t *testing.T, cfg launch.Config) agent.Config {
	t.Helper()
	out, _, err := launch.Build(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// compareKubelet compares /configz, which shows this object, field by field.
func compareKubelet(t *testing.T, got, want *kubeletv1beta1.KubeletConfiguration) {
	t.Helper()
	a, b := fieldsOf(t, got), fieldsOf(t, want)
	if len(b) < 80 {
		t.Fatalf("only %d fields are compared", len(b))
	}
	all := maps.Clone(a)
	maps.Copy(all, b)
	for _, path := range slices.Sorted(maps.Keys(all)) {
		if !slices.Contains(ofTheCluster, path) && a[path] != b[path] {
			t.Errorf("%s is %s, and of the stand-alone agent %s", path, a[path], b[path])
		}
	}
}

func fieldsOf(t *testing.T, k *kubeletv1beta1.KubeletConfiguration) map[string]string {
	t.Helper()
	text, err := json.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	var tree map[string]any
	if err := json.Unmarshal(text, &tree); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	var walk func(prefix string, tree map[string]any)
	walk = func(prefix string, tree map[string]any) {
		for key, value := range tree {
			if below, ok := value.(map[string]any); ok {
				walk(prefix+key+".", below)
				continue
			}
			out[prefix+key] = fmt.Sprint(value)
		}
	}
	walk("", tree)
	return out
}

// compareAgent compares every field of what agents run with; of those that are
// functions or clients, whether they are set.
func compareAgent(t *testing.T, got, want agent.Config) {
	t.Helper()
	compareFields(t, reflect.ValueOf(got), reflect.ValueOf(want))
	compareFields(t, reflect.ValueOf(got.API), reflect.ValueOf(want.API))
	switch {
	case got.TLS == nil || want.TLS == nil:
		t.Errorf("TLS is %v, and of the stand-alone agent %v", got.TLS, want.TLS)
	case got.TLS.MinVersion != want.TLS.MinVersion || !slices.Equal(got.TLS.CipherSuites, want.TLS.CipherSuites) ||
		!slices.Equal(got.TLS.CurvePreferences, want.TLS.CurvePreferences):
		t.Errorf("TLS has other settings: %+v, %+v", got.TLS, want.TLS)
	}
}

func compareFields(t *testing.T, a, b reflect.Value) {
	t.Helper()
	for i := range a.NumField() {
		name := a.Type().Field(i).Name
		if ofTheRole[name] != "" || name == "API" || name == "TLS" { // those two have a comparison of their own
			continue
		}
		x, y := a.Field(i), b.Field(i)
		switch {
		case x.Kind() == reflect.Func || x.Kind() == reflect.Interface || name == "Log":
			if x.IsNil() != y.IsNil() {
				t.Errorf("%s is set in one of them only", name)
			}
		case !reflect.DeepEqual(x.Interface(), y.Interface()):
			t.Errorf("%s is %+v, and of the stand-alone agent %+v", name, x.Interface(), y.Interface())
		}
	}
}

// TestPodsOfANodeAreConfined: what a cluster of our own gives pods that name
// nothing, that a file wins over it, and that a host without seccomp says so
// instead of refusing pods.
func TestPodsOfANodeAreConfined(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	if err := os.WriteFile(file,
		[]byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nseccompDefault: false\npodPidsLimit: -1\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, file, lacks string
		hardened, seccomp bool
		pids              int64
		notes             int
	}{
		{name: "defaults", seccomp: true, pids: 4096},
		{name: "a file wins", file: file, pids: -1},
		{name: "no seccomp", lacks: "runc applies no profile", pids: 4096, notes: 1},
		{name: "no seccomp, none asked for", file: file, lacks: "runc applies no profile", pids: -1},
		{name: "hardened", hardened: true, seccomp: true, pids: 4096},
	} {
		u := newHost(t, RoleWhole, test.file)
		u.Hardened, u.runtimeLacks = &test.hardened, test.lacks
		cfg, err := u.agentConfig(u.log)
		if err != nil {
			t.Fatal(err)
		}
		k := cfg.Effective.Kubelet
		if *k.SeccompDefault != test.seccomp || *k.PodPidsLimit != test.pids || len(u.notes) != test.notes {
			t.Errorf("%s: seccompDefault %v, podPidsLimit %d, notes %q", test.name, *k.SeccompDefault, *k.PodPidsLimit, u.notes)
		}
		if got := buildAgent(t, cfg).DropCapabilities; (len(got) > 0) != test.hardened {
			t.Errorf("%s: dropped %v", test.name, got)
		}
	}
}
