// Command soak keeps a cluster of its own busy with pods that come and go and
// prints, once a minute, what its processes hold: resident memory, goroutines
// and descriptors. It ends with an error if memory grew by more than the bar.
//
//	BERTH_BIN=bin go run ./test/bench/soak [-for 1h] [-pods 20] [-churn 2s] [-- flags of berth up]
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	firstPort = 20500
	// bar is the most that resident memory may grow, in percent.
	bar = 5.0
	// warmUp is the part of the time that does not count: caches fill.
	warmUp = 0.1
)

func main() {
	length := flag.Duration("for", time.Hour, "how long to run")
	pods := flag.Int("pods", 20, "pods at any time")
	churn := flag.Duration("churn", 2*time.Second, "time between one pod replaced and the next")
	every := flag.Duration("every", time.Minute, "time between lines")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	s := &soak{bin: os.Getenv("BERTH_BIN"), pods: *pods, churn: *churn}
	if err := s.run(ctx, *length, *every, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

type soak struct {
	bin, dir string
	pods     int
	churn    time.Duration
	client   kubernetes.Interface
	node     string
	replaced int
}

func (s *soak) run(ctx context.Context, length, every time.Duration, flags []string) error {
	if s.bin == "" {
		return errors.New("BERTH_BIN names no directory with built binaries: make build")
	}
	var err error
	if s.dir, err = os.MkdirTemp("", "bs"); err != nil {
		return err
	}
	defer func() {
		if _, err := s.berth("down", "--purge"); err != nil {
			fmt.Fprintln(os.Stderr, "soak:", err)
		}
	}()
	if err := s.start(ctx, flags); err != nil {
		return err
	}
	fmt.Println("minute  berth MiB  containerd MiB  goroutines  descriptors  pods replaced")
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	replace, line := time.NewTicker(s.churn), time.NewTicker(every)
	defer replace.Stop()
	defer line.Stop()
	began := time.Now()
	var base, last sample
	for n := 0; ; {
		select {
		case <-ctx.Done():
			return verdict(base, last)
		case <-replace.C:
			if err := s.replace(ctx, n%s.pods); err != nil && ctx.Err() == nil {
				return err
			}
			n++
		case <-line.C:
			if last, err = s.measure(ctx); err != nil {
				return err
			}
			passed := time.Since(began)
			fmt.Printf("%6.1f  %9.1f  %14.1f  %10d  %11d  %13d\n", passed.Minutes(), last.berth, last.containerd, last.goroutines, last.descriptors, s.replaced)
			if base.berth == 0 && passed >= time.Duration(warmUp*float64(length)) {
				base = last
			}
		}
	}
}

func verdict(base, last sample) error {
	if base.berth == 0 {
		return errors.New("too short to tell growth")
	}
	growth := 100 * (last.berth - base.berth) / base.berth
	fmt.Printf("after the warm-up: memory %+.1f %% (bar %.0f %%), goroutines %+d, descriptors %+d\n",
		growth, bar, last.goroutines-base.goroutines, last.descriptors-base.descriptors)
	if growth > bar {
		return fmt.Errorf("memory grew by %.1f %%, at most %.0f %% are allowed", growth, bar)
	}
	return nil
}

func (s *soak) berth(args ...string) (string, error) {
	args = append(args[:1:1], append([]string{"--data-dir", s.dir}, args[1:]...)...)
	out, err := exec.Command(filepath.Join(s.bin, "berth"), args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("berth %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

func (s *soak) start(ctx context.Context, flags []string) error {
	if _, err := s.berth(append([]string{"up", "--detach", "--ports-from", strconv.Itoa(firstPort)}, flags...)...); err != nil {
		return err
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(s.dir, "admin.kubeconfig"))
	if err != nil {
		return err
	}
	cfg.QPS = -1
	if s.client, err = kubernetes.NewForConfig(cfg); err != nil {
		return err
	}
	nodes, err := s.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 {
		return fmt.Errorf("looking for the node: %d found, %v", len(nodes.Items), err)
	}
	s.node = nodes.Items[0].Name
	return nil
}

// replace deletes one pod and makes it anew under another name.
func (s *soak) replace(ctx context.Context, slot int) error {
	pods := s.client.CoreV1().Pods(metav1.NamespaceDefault)
	old, label := metav1.ListOptions{LabelSelector: fmt.Sprintf("slot=%d", slot)}, map[string]string{"slot": strconv.Itoa(slot)}
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, old); err != nil {
		return fmt.Errorf("deleting the pod of slot %d: %w", slot, err)
	}
	_, err := pods.Create(ctx, &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "soak-", Labels: label},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "berth.dev/pause:1"}}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsForbidden(err) { // the service account may not be there yet
		return fmt.Errorf("creating the pod of slot %d: %w", slot, err)
	}
	s.replaced++
	return nil
}

// sample is what the processes hold at one moment.
type sample struct {
	berth, containerd       float64 // MiB
	goroutines, descriptors int
}

func (s *soak) measure(ctx context.Context) (sample, error) {
	var got sample
	for file, into := range map[string]*float64{"lock": &got.berth, "run/containerd.pid": &got.containerd} {
		pid, err := os.ReadFile(filepath.Join(s.dir, file))
		if err != nil {
			return got, err
		}
		proc := filepath.Join("/proc", strings.TrimSpace(string(pid)))
		if *into, err = residentMiB(proc); err != nil {
			return got, err
		}
		if file == "lock" {
			open, err := os.ReadDir(filepath.Join(proc, "fd"))
			if err != nil {
				return got, err
			}
			got.descriptors = len(open)
		}
	}
	text, err := s.client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/" + s.node + "/proxy/metrics").DoRaw(ctx)
	if err != nil {
		return got, fmt.Errorf("asking the agent for its metrics: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "go_goroutines "); ok {
			if got.goroutines, err = strconv.Atoi(strings.TrimSpace(rest)); err != nil {
				return got, err
			}
		}
	}
	return got, nil
}

func residentMiB(proc string) (float64, error) {
	file, err := os.Open(filepath.Join(proc, "status"))
	if err != nil {
		return 0, err
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("%s tells no resident memory", proc)
}
