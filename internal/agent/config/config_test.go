package config

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/internal/testkit/golden"
)

func load(t *testing.T, files map[string]string, args ...string) (*Effective, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	flags := AddFlags(fs)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "DIR", dir)
	}
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return Load(flags)
}

const header = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

// TestEveryFieldHasARow polices the table: a field that a new version of the
// API brings fails here until someone decides about it.
func TestEveryFieldHasARow(t *testing.T) {
	used := map[string]bool{}
	for _, leaf := range leaves(reflect.TypeFor[kubeletv1beta1.KubeletConfiguration](), "") {
		field, ok := fieldFor(leaf)
		if !ok {
			t.Errorf("field %s has no row", leaf)
		}
		used[field.Path] = true
	}
	for _, field := range Fields {
		if !used[field.Path] {
			t.Errorf("row %s is about no field", field.Path)
		}
		if field.Support != Honoured && field.Note == "" {
			t.Errorf("row %s does not say what happens instead", field.Path)
		}
	}
}

// TestDocumentation keeps the table for users equal to the one in code.
// TestEveryFlagIsUsed looks for a reader of each setting that exists as a flag
// only, outside of where the flags are declared.
func TestEveryFlagIsUsed(t *testing.T) {
	used := map[string]bool{}
	for _, pattern := range []string{"load.go", "../launch/*.go", "../../cli/agent.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("no files %s: %v", pattern, err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok {
					used[s.Sel.Name] = true
				}
				return true
			})
		}
	}
	for i := range reflect.TypeFor[Agent]().NumField() {
		if name := reflect.TypeFor[Agent]().Field(i).Name; !used[name] {
			t.Errorf("nobody reads the flag in Agent.%s: it would be ignored silently", name)
		}
	}
}

func TestDocumentation(t *testing.T) {
	var out bytes.Buffer
	out.WriteString("# KubeletConfiguration v1beta1 in berth\n\nGenerated from the table in the code by `go test ./internal/agent/config " +
		"-args -rewrite`.\n\n" +
		"- **honoured**: has its documented effect\n- **subsumed**: accepted, with a note at start: berth does at least that in " +
		"another way\n" +
		"- **refused**: any value but the default stops the agent at start, naming the field\n\n| field | berth | note |\n|---|---|---|\n")
	for _, field := range Fields {
		fmt.Fprintf(&out, "| `%s` | %s | %s |\n", field.Path, field.Support, field.Note)
	}
	golden.Check(t, "../../../docs/kubelet-configuration.md", out.String())
}

func TestDefaultsAreSecure(t *testing.T) {
	for name, files := range map[string]map[string]string{"no file": nil, "empty file": {"c.yaml": header}} {
		args := []string{}
		if files != nil {
			args = append(args, "--config=DIR/c.yaml")
		}
		e, err := load(t, files, args...)
		if err != nil {
			t.Fatal(err)
		}
		k := e.Kubelet
		if *k.Authentication.Anonymous.Enabled || !*k.Authentication.Webhook.Enabled || k.Authorization.Mode != "Webhook" ||
			k.ReadOnlyPort != 0 {
			t.Errorf("%s: %+v %+v", name, k.Authentication, k.Authorization)
		}
		if k.EvictionHard["memory.available"] != "100Mi" || k.NodeStatusReportFrequency.Duration != 5*time.Minute || k.Port != 10250 {
			t.Errorf("%s: defaults are missing: %+v", name, k)
		}
	}
}

// TestKubeadmFile reads what kubeadm writes: full of zero durations that mean
// the default.
func TestKubeadmFile(t *testing.T) {
	e, err := load(t, map[string]string{"c.yaml": `apiVersion: kubelet.config.k8s.io/v1beta1
authentication:
  anonymous:
    enabled: false
  webhook:
    cacheTTL: 0s
    enabled: true
  x509:
    clientCAFile: /etc/kubernetes/pki/ca.crt
authorization:
  mode: Webhook
  webhook:
    cacheAuthorizedTTL: 0s
    cacheUnauthorizedTTL: 0s
cgroupDriver: systemd
clusterDNS:
- 10.96.0.10
clusterDomain: cluster.local
containerRuntimeEndpoint: ""
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
kind: KubeletConfiguration
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: "0"
    text:
      infoBufferSize: "0"
  verbosity: 0
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
resolvConf: /run/systemd/resolve/resolv.conf
rotateCertificates: true
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
staticPodPath: /etc/kubernetes/manifests
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s
`}, "--config=DIR/c.yaml")
	if err != nil {
		t.Fatal(err)
	}
	k := e.Kubelet
	if k.CgroupDriver != "systemd" || k.EvictionPressureTransitionPeriod.Duration != 5*time.Minute ||
		k.Authorization.Webhook.CacheAuthorizedTTL.Duration != 5*time.Minute ||
		k.ContainerRuntimeEndpoint != "unix:///run/containerd/containerd.sock" || !k.RotateCertificates {
		t.Errorf("effective: %+v", k)
	}
	if len(e.Notes) > 0 {
		t.Errorf("notes: %q", e.Notes)
	}
}

func TestLayersAndSources(t *testing.T) {
	e, err := load(t, map[string]string{
		"c.yaml": header +
			"maxPods: 10\nport: 1000\nclusterDNS: [1.1.1.1, 2.2.2.2]\nevictionHard: {memory.available: 1Gi}\nsystemReserved: {cpu: 100m}\n",
		"d/10.conf":    header + "maxPods: 20\nclusterDNS: [3.3.3.3]\nsystemReserved: {memory: 1Gi}\n",
		"d/20.conf":    header + "port: 2000\n",
		"d/readme.txt": "not a configuration",
	}, "--config=DIR/c.yaml", "--config-dir=DIR/d", "--max-pods=30", "--register-with-taints=a=b:NoSchedule", "-v=4")
	if err != nil {
		t.Fatal(err)
	}
	k := e.Kubelet
	if k.MaxPods != 30 || k.Port != 2000 || len(k.ClusterDNS) != 1 || k.ClusterDNS[0] != "3.3.3.3" || len(k.SystemReserved) != 2 ||
		k.Logging.Verbosity != 4 {
		t.Errorf("effective: %+v", k)
	}
	if len(k.EvictionHard) != 1 {
		t.Errorf("evictionHard is %v: setting one key replaces all defaults", k.EvictionHard)
	}
	if len(k.RegisterWithTaints) != 1 || k.RegisterWithTaints[0].Key != "a" {
		t.Errorf("taints are %v", k.RegisterWithTaints)
	}
	for path, want := range map[string]string{"maxPods": "--max-pods", "port": "20.conf", "systemReserved.cpu": "c.yaml",
		"systemReserved.memory": "10.conf", "address": "default"} {
		if got := e.Sources[path]; !strings.HasSuffix(got, want) {
			t.Errorf("source of %s is %q, want %q", path, got, want)
		}
	}
	if text := e.Explain(); !strings.Contains(text, "maxPods = 30\t(--max-pods)\n") {
		t.Errorf("explanation:\n%s", text)
	}
}

func TestEvictionDefaultsCanBeMerged(t *testing.T) {
	e, err := load(t, map[string]string{"c.yaml": header + "mergeDefaultEvictionSettings: true\nevictionHard: {memory.available: 1Gi}\n"},
		"--config=DIR/c.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if hard := e.Kubelet.EvictionHard; len(hard) != 5 || hard["memory.available"] != "1Gi" {
		t.Errorf("evictionHard is %v", hard)
	}
}

func TestReportFrequencyFollowsAnExplicitUpdateFrequency(t *testing.T) {
	e, err := load(t, map[string]string{"c.yaml": header + "nodeStatusUpdateFrequency: 20s\n"}, "--config=DIR/c.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if got := e.Kubelet.NodeStatusReportFrequency.Duration; got != 20*time.Second {
		t.Errorf("nodeStatusReportFrequency is %v", got)
	}
}

func TestRefusals(t *testing.T) {
	for text, want := range map[string]string{
		"maxPodz: 5":                                                   "maxPodz",
		"maxPods: 5\nmaxPods: 6":                                       "maxPods",
		"maxPods: many":                                                "maxPods",
		"runOnce: true":                                                "field runOnce (",
		"cpuManagerPolicy: dynamic":                                    "allowed are none and static",
		"cpuManagerPolicyOptions: {fast: 'true'}":                      "cpuManagerPolicyOptions[fast] is not known",
		"topologyManagerPolicy: strict":                                "allowed are none, best-effort, restricted, single-numa-node",
		"memorySwap: {swapBehavior: UnlimitedSwap}":                    "allowed are NoSwap and LimitedSwap",
		"topologyManagerScope: node":                                   "allowed are container and pod",
		"memoryManagerPolicy: static":                                  "allowed are None and Static",
		"reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]":       "needs memoryManagerPolicy Static",
		"reservedSystemCPUs: 0-x":                                      "must be a list of processors",
		"reservedSystemCPUs: '0'\nsystemReservedCgroup: /system":       "excludes systemReservedCgroup",
		"enforceNodeAllocatable: [none, pods]":                         "none beside others",
		"enforceNodeAllocatable: [pods, system]":                       "allowed are pods, system-reserved",
		"tracing: {samplingRatePerMillion: 2000000}":                   "allowed are 0 to 1000000",
		"tracing: {endpoint: collector}":                               "must be host:port",
		"memoryThrottlingFactor: 0.8":                                  "memoryThrottlingFactor needs featureGates.MemoryQoS: true",
		"memoryReservationPolicy: TieredReservation":                   "memoryReservationPolicy needs featureGates.MemoryQoS: true",
		"memoryReservationPolicy: All":                                 "allowed are [None TieredReservation]",
		"memoryThrottlingFactor: 1.5\nfeatureGates: {MemoryQoS: true}": "must be above 0 and at most 1",
		"evictionHard: {memory.free: 5%}":                              "evictionHard.memory.free is no signal",
		"evictionSoft: {memory.available: 5%}":                         "needs evictionSoftGracePeriod.memory.available",
		"evictionHard: {memory.available: 105%}":                       "between 0% and 100%",
		"featureGates: {Unheard: true}":                                "featureGates.Unheard is not known",
		"authorization: {mode: RBAC}":                                  "allowed are Webhook and AlwaysAllow",
		"imageGCHighThresholdPercent: 50":                              "must be below",
		"enforceNodeAllocatable: [kube-reserved]":                      "needs kubeReservedCgroup",
		"systemReserved: {gpu: '1'}":                                   "systemReserved.gpu",
		"imagePullCredentialsVerificationPolicy: Sometimes":            "allowed are [NeverVerify NeverVerifyPreloadedImages",
		"preloadedImagesVerificationAllowlist: [r.example/a]": "needs imagePullCredentialsVerificationPolicy " +
			"NeverVerifyAllowlistedImages",
		"tlsCertFile: a":                            "must be set together",
		"shutdownGracePeriodCriticalPods: 5s":       "must not be above shutdownGracePeriod",
		"registerWithTaints: [{key: a, effect: X}]": "allowed are NoSchedule",
	} {
		_, err := load(t, map[string]string{"c.yaml": header + text + "\n"}, "--config=DIR/c.yaml")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got error %v, want one with %q", text, err, want)
		}
	}
	if _, err := load(t, map[string]string{"c.yaml": "kind: Pod\napiVersion: v1\n"}, "--config=DIR/c.yaml"); err == nil {
		t.Error("a file of another kind was read")
	}
	if _, err := load(t, nil, "--max-pods=many"); err == nil || !strings.Contains(err.Error(), "--max-pods") {
		t.Errorf("got %v", err)
	}
}

func TestNotesSayWhatIsDoneDifferently(t *testing.T) {
	e, err := load(t, map[string]string{"c.yaml": header + "syncFrequency: 10s\n"}, "--config=DIR/c.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if len(e.Notes) != 1 || !strings.Contains(e.Notes[0], "syncFrequency") {
		t.Errorf("notes: %q", e.Notes)
	}
}

func TestThreshold(t *testing.T) {
	for text, want := range map[string]int64{"100Mi": 100 << 20, "10%": 100, "0.5%": 5} {
		threshold, on, err := ParseThreshold(text)
		if err != nil || !on || threshold.Of(1000) != want {
			t.Errorf("%s: %d (%v, %v), want %d", text, threshold.Of(1000), on, err, want)
		}
	}
	for _, text := range []string{"0%", "100%"} {
		if _, on, err := ParseThreshold(text); on || err != nil {
			t.Errorf("%s: on=%v, %v", text, on, err)
		}
	}
	for _, text := range []string{"-1", "x%", "-5%", "ten"} {
		if _, _, err := ParseThreshold(text); err == nil {
			t.Errorf("%s was read", text)
		}
	}
}

// TestEvictionOverAnotherBase: also over the base of `berth up` one signal
// replaces all, unless the file asks for the base's others.
func TestEvictionOverAnotherBase(t *testing.T) {
	base := []byte(header + "evictionHard: {memory.available: 100Mi, nodefs.available: 5%}\n")
	for fields, want := range map[string]map[string]string{
		"maxPods: 10\n": {"memory.available": "100Mi", "nodefs.available": "5%"},
		"evictionHard: {memory.available: 1Gi}\n": {"memory.available": "1Gi"},
		"evictionHard: {memory.available: 1Gi}\nmergeDefaultEvictionSettings: true\n": {"memory.available": "1Gi", "nodefs.available": "5%",
			"nodefs.inodesFree": "5%", "imagefs.available": "15%", "imagefs.inodesFree": "5%"},
	} {
		file := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(file, []byte(header+fields), 0o600); err != nil {
			t.Fatal(err)
		}
		e, err := Over(base, file)
		if err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(e.Kubelet.EvictionHard, want) {
			t.Errorf("%q: evictionHard is %v, want %v", fields, e.Kubelet.EvictionHard, want)
		}
	}
}
