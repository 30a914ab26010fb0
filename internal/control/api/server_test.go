package api_test

import (
	"flag"
	"os"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/internal/control/api/apitest"
)

func TestMain(m *testing.M) {
	// The library's own log; -v=N of klog is of no use here.
	fs := flag.NewFlagSet("klog", flag.PanicOnError)
	klog.InitFlags(fs)
	if os.Getenv("APITEST_KLOG") == "" {
		fs.Set("logtostderr", "false")
		fs.Set("stderrthreshold", "FATAL")
		klog.SetOutput(discard{})
	}
	os.Exit(m.Run())
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

func clients(t testing.TB, config *rest.Config) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// residentMiB is the process's resident memory.
func residentMiB(t testing.TB) int {
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return kib >> 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

func TestStart(t *testing.T) {
	env := apitest.StartEnv(t)
	t.Logf("etcd %s, API ready %s, RSS %d MiB", env.ToEtcd, env.ToReady, residentMiB(t))
	c := clients(t, env.Config)
	ns, err := c.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(ns.Items) != 4 {
		t.Errorf("namespaces: %v", ns.Items)
	}
	cm, err := c.CoreV1().ConfigMaps("default").Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "a-"}, Data: map[string]string{"k": "v"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if cm.Name == "a-" || len(cm.ManagedFields) != 1 {
		t.Errorf("created %+v", cm)
	}
	for _, path := range []string{"/openapi/v2", "/openapi/v3", "/openapi/v3/apis/apps/v1"} {
		raw, err := c.Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(t.Context())
		if err != nil || len(raw) < 1000 {
			t.Errorf("%s: %d bytes, %v", path, len(raw), err)
		}
	}
	t.Logf("with OpenAPI documents built: RSS %d MiB", residentMiB(t))
	v, err := c.Discovery().ServerVersion()
	if err != nil || v.GitVersion != "v1.37.2+berth" {
		t.Errorf("version %v, %v", v, err)
	}
}

func quantity(s string) resource.Quantity { return resource.MustParse(s) }
