package api_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/control/api"
	"github.com/berth-dev/berth/internal/control/api/apitest"
	"github.com/berth-dev/berth/internal/control/api/encryption"
)

// Bars of BenchmarkCreatePod: what audit, encryption at rest and fairness may
// cost together, at the median and of resident memory.
const (
	guardPercentBar = 5
	guardMiBBar     = 15
)

// memoryChild names, in the environment, which server a process of this
// benchmark measures the memory of.
const memoryChild = "BERTH_BENCH_CREATE_POD"

// guardedServer is a server as `berth server` runs it by default; without it the
// three are off.
func guardedServer(b *testing.B, guarded bool) (*apitest.Env, kubernetes.Interface) {
	b.Helper()
	dir := b.TempDir()
	env := apitest.StartEnv(b, apitest.WithConfig(func(c *api.Config) {
		c.Options = api.NewOptions()
		c.Options.Fairness = guarded
		c.Options.Audit.LogOptions.Path = ""
		if guarded {
			c.Options.Audit.LogOptions.Path = filepath.Join(dir, "audit.log")
			c.Options.EncryptionConfig = filepath.Join(dir, "encryption.yaml")
			if err := encryption.Create(c.Options.EncryptionConfig); err != nil {
				b.Fatal(err)
			}
		}
	}))
	// A user of his own: the server's own identity is neither audited nor queued.
	config := rest.CopyConfig(env.As(b, "ann", "system:masters"))
	config.QPS = -1
	client := kubernetes.NewForConfigOrDie(config)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}} // no controller makes it here
	if _, err := client.CoreV1().ServiceAccounts("default").Create(b.Context(), account, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	return env, client
}

func createPod(b *testing.B, client kubernetes.Interface, i int) time.Duration {
	b.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i), Labels: map[string]string{"app": "bench"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "image:1", Env: []corev1.EnvVar{{Name: "A", Value: "b"}}}}}}
	began := time.Now()
	if _, err := client.CoreV1().Pods("default").Create(b.Context(), pod, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	return time.Since(began)
}

// BenchmarkCreatePod creates pods in a bare and in a guarded server in turns,
// and compares the medians; and processor time and resident memory of processes
// of each in turns, which other work on the machine disturbs less. Use
// -benchtime 2000x: the median of a few is noise.
func BenchmarkCreatePod(b *testing.B) {
	if which := os.Getenv(memoryChild); which != "" {
		benchChild(b, which == "guarded")
		return
	}
	_, bare := guardedServer(b, false)
	_, guarded := guardedServer(b, true)
	took := map[bool][]time.Duration{}
	b.ResetTimer()
	for i := range b.N {
		first := i%2 == 0
		for _, which := range []bool{first, !first} {
			client := bare
			if which {
				client = guarded
			}
			took[which] = append(took[which], createPod(b, client, i))
		}
	}
	b.StopTimer()
	median := func(d []time.Duration) float64 { slices.Sort(d); return float64(d[len(d)/2].Microseconds()) }
	slow, plain := median(took[true]), median(took[false])
	b.ReportMetric(plain, "µs-bare")
	b.ReportMetric(slow, "µs-guarded")
	b.ReportMetric(100*(slow-plain)/plain, "%-slower")
	if b.N < 500 {
		return // the memory is measured once, not for each guess of b.N
	}
	more, cpu := compareChildren(b)
	b.ReportMetric(more, "MiB-more")
	b.ReportMetric(cpu, "%-more-cpu")
	if over := 100 * (slow - plain) / plain; over > guardPercentBar || more > guardMiBBar {
		b.Logf("MISSED: audit, encryption and fairness cost %.1f %% and %.0f MiB; the bars are %d %% and %d MiB", over, more,
			guardPercentBar,
			guardMiBBar)
	}
}

// childPods are the pods that a process makes whose figures are taken.
const childPods = 1000

// benchChild prints what a process of its own takes to make pods: processor time
// of server, store and client together, until the audit log is written, and
// resident memory.
func benchChild(b *testing.B, guarded bool) {
	b.Helper()
	env, client := guardedServer(b, guarded)
	for i := range 100 {
		createPod(b, client, childPods+i) // what happens once
	}
	began := cpuTime(b)
	for i := range childPods {
		createPod(b, client, i)
	}
	took := cpuTime(b) - began
	runtime.GC()
	debug.FreeOSMemory()
	rss := int(residentMiB(b))
	began = cpuTime(b)
	env.Stop() // the audit log is written at the latest now
	took += cpuTime(b) - began
	fmt.Printf("RSS=%d CPU=%d\n", rss, took.Microseconds()/childPods)
}

// compareChildren is what guarded processes take more than bare ones: MiB of
// memory and percent of processor time, of medians.
func compareChildren(b *testing.B) (mib, percent float64) {
	b.Helper()
	rss, cpu := map[string][]float64{}, map[string][]float64{}
	for range 5 {
		for _, which := range []string{"bare", "guarded"} {
			r, c := runChild(b, which)
			rss[which], cpu[which] = append(rss[which], r), append(cpu[which], c)
		}
	}
	median := func(d []float64) float64 { slices.Sort(d); return d[len(d)/2] }
	plain := median(cpu["bare"])
	b.ReportMetric(plain, "µs-cpu-bare")
	return median(rss["guarded"]) - median(rss["bare"]), 100 * (median(cpu["guarded"]) - plain) / plain
}

// runChild runs a process of its own and returns its MiB and microseconds of
// processor time per pod.
func runChild(b *testing.B, which string) (mib, micros float64) {
	b.Helper()
	cmd := exec.Command(os.Args[0], "-test.run", "^$", "-test.bench", "^BenchmarkCreatePod$", "-test.benchtime", "1x")
	cmd.Env = append(os.Environ(), memoryChild+"="+which)
	out, err := cmd.CombinedOutput()
	found := regexp.MustCompile(`RSS=(\d+) CPU=(\d+)`).FindSubmatch(out)
	if err != nil || found == nil {
		b.Fatalf("measuring the %s server: %v\n%s", which, err, out)
	}
	figures := [2]float64{}
	for i := range figures {
		if figures[i], err = strconv.ParseFloat(string(found[i+1]), 64); err != nil {
			b.Fatal(err)
		}
	}
	return figures[0], figures[1]
}
