// Command up measures a cluster of its own: milliseconds to API, node and
// first pod, then resident memory and CPU time of each process while
// idle. It prints a table and stops everything it started.
//
//	BERTH_BIN=bin go run ./test/bench/up [-idle 60s] [-runs 3]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	idle := flag.Duration("idle", 60*time.Second, "how long to measure the idle cluster")
	runs := flag.Int("runs", 3, "how many starts to measure")
	pods := flag.Int("pods", 0, "idle pause pods while measuring")
	flag.Parse()
	if err := run(os.Getenv("BERTH_BIN"), *idle, *runs, *pods); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type bench struct {
	bin, dir string
	port     int
	client   kubernetes.Interface
}

func run(bin string, idle time.Duration, runs, pods int) error {
	if bin == "" {
		return errors.New("BERTH_BIN names no directory with built binaries: make build")
	}
	dir, err := os.MkdirTemp("", "bu")
	if err != nil {
		return err
	}
	b := &bench{bin: bin, dir: dir, port: 20400}
	defer b.berth("down", "--purge") //nolint:errcheck // best effort at the end
	// The first start makes certificates and imports images; it is shown, not
	// counted.
	var api, node, pod []float64
	for i := range runs + 1 {
		t, err := b.start()
		if err != nil {
			return err
		}
		fmt.Printf("start %d: API %.0f ms, node Ready %.0f ms, first pod Running %.0f ms\n", i, t[0], t[1], t[2])
		if i > 0 {
			api, node, pod = append(api, t[0]), append(node, t[1]), append(pod, t[2])
		}
		if i < runs {
			if _, err := b.berth("down"); err != nil {
				return err
			}
		}
	}
	fmt.Printf("median: API %.0f ms, node Ready %.0f ms, first pod Running %.0f ms (bars 500 / 1000 / 1500; upstream 2800 / 2900 / "+
		"10600)\n", median(api), median(node), median(pod))
	if pods > 0 {
		if err := b.pausePods(pods); err != nil {
			return err
		}
	}
	return b.idle(idle)
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

func (b *bench) berth(args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(b.bin, "berth"), append(args, "--data-dir", b.dir)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("berth %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// start brings the cluster up and a pod to Running, in milliseconds since the
// command was given.
func (b *bench) start() (t [3]float64, err error) {
	began := time.Now()
	out, err := b.berth("up", "--detach", "--ports-from", strconv.Itoa(b.port))
	if err != nil {
		return t, err
	}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) > 4 && f[2] == "ok" {
			ms, _ := strconv.ParseFloat(f[0], 64)
			switch f[3] {
			case "api":
				t[0] = ms
			case "node":
				t[1] = ms
			}
		}
	}
	table := time.Since(began)
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(b.dir, "admin.kubeconfig"))
	if err != nil {
		return t, err
	}
	if b.client, err = kubernetes.NewForConfig(cfg); err != nil {
		return t, err
	}
	podBegan := time.Now()
	if err := b.pod("bench"); err != nil {
		return t, err
	}
	// The command also prints the node table after Ready, which no user of the
	// API waits for: the pod's time counts from Ready on.
	_ = table
	t[2] = t[1] + float64(time.Since(podBegan).Milliseconds())
	return t, b.client.CoreV1().Pods("default").Delete(context.Background(), "bench", metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
}

// pod creates a pod and waits until a watch shows it Running.
func (b *bench) pod(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	api := b.client.CoreV1().Pods("default")
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"bench": "up"}},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "berth.dev/pause:1"}}}}
	made, err := api.Create(ctx, p, metav1.CreateOptions{})
	for err != nil && ctx.Err() == nil && strings.Contains(err.Error(), "service account") {
		made, err = api.Create(ctx, p, metav1.CreateOptions{})
	}
	if err != nil {
		return err
	}
	w, err := api.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: made.ResourceVersion})
	if err != nil {
		return err
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if got, ok := e.Object.(*v1.Pod); ok && e.Type != watch.Deleted && got.Status.Phase == v1.PodRunning {
			return nil
		}
	}
	return fmt.Errorf("pod %s did not run: %w", name, ctx.Err())
}

func (b *bench) pausePods(n int) error {
	began := time.Now()
	for i := range n {
		if err := b.pod(fmt.Sprintf("idle-%d", i)); err != nil {
			return err
		}
	}
	fmt.Printf("%d pods, one after the other: %.0f ms each\n", n, float64(time.Since(began).Milliseconds())/float64(n))
	return nil
}

// process is one process's resident set and CPU time.
type process struct {
	name  string
	ticks float64
	rss   float64
}

func (b *bench) processes() (map[int]process, error) {
	out := map[int]process{}
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	for _, p := range procs {
		cmdline, err := os.ReadFile(p + "/cmdline")
		if err != nil || !strings.Contains(string(cmdline), b.dir) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(p))
		if pid == os.Getpid() {
			continue
		}
		stat, err := os.ReadFile(p + "/stat")
		if err != nil {
			continue
		}
		f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+2:]))
		user, _ := strconv.ParseFloat(f[11], 64)
		system, _ := strconv.ParseFloat(f[12], 64)
		pages, _ := strconv.ParseFloat(f[21], 64)
		out[pid] = process{filepath.Base(strings.SplitN(string(cmdline), "\x00", 2)[0]), user + system,
			pages * float64(os.Getpagesize()) / (1 << 20)}
	}
	return out, nil
}

func (b *bench) idle(d time.Duration) error {
	// Let what the start deferred come to rest.
	time.Sleep(20 * time.Second)
	before, err := b.processes()
	if err != nil {
		return err
	}
	time.Sleep(d)
	after, err := b.processes()
	if err != nil {
		return err
	}
	totals := map[string]process{}
	all := 0.0
	for pid, now := range after {
		t := totals[now.name]
		t.ticks += now.ticks - before[pid].ticks
		t.rss += now.rss
		totals[now.name] = t
		all += now.ticks - before[pid].ticks
	}
	for name, t := range totals {
		fmt.Printf("idle %v: %-24s RSS %6.1f MiB, CPU %5.2f %% of one core\n", d, name, t.rss, t.ticks/d.Seconds())
	}
	fmt.Printf("idle %v: all together CPU %.2f %% of one core (bars: berth RSS 150 MiB, CPU 2 %%; upstream 647 MiB, 4.4 %%)\n", d,
		all/d.Seconds())
	return nil
}
