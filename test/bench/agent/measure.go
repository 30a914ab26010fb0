package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"

	"github.com/berth-dev/berth/test/rig"
)

type bench struct {
	*rig.Rig
	floor   *floor
	agent   *rig.Agent
	http    *http.Client // of ask
	idleFor time.Duration
	hangFor time.Duration
	many    int
	probed  int
	rounds  int // of floor and agent in turns
	missed  int
}

const nodeName = "bench"

// verdict is how a figure stands to its bar.
type verdict string

const none verdict = ""

func met(ok bool) verdict { return map[bool]verdict{true: "met", false: "MISSED"}[ok] }

// note prints one line of the table.
func (b *bench) note(part, what, target, measured string, v verdict) {
	if v == met(false) {
		b.missed++
	}
	fmt.Printf("%-9s %-85s %-26s %-34s %s\n", part, what, target, measured, v)
}

// spread is the median and the ends of some ratios.
func spread(ratios []float64) string {
	s := slices.Sorted(slices.Values(ratios))
	return fmt.Sprintf("%.2f, %.2f..%.2f", s[len(s)/2], s[0], s[len(s)-1])
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }

func quantile(v []time.Duration, q float64) time.Duration {
	s := slices.Sorted(slices.Values(v))
	return s[min(len(s)-1, int(q*float64(len(s))))]
}

// pod is a pod bound to the node, so that no scheduler is measured.
func (b *bench) pod(name string, probed bool) *v1.Pod {
	c := v1.Container{Name: "c", Image: "berth.dev/pause:1"}
	if probed {
		c.Image, c.Args = "berth.dev/toolbox:1", []string{"serve", "8080"}
		c.ReadinessProbe = &v1.Probe{PeriodSeconds: 10, ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/",
			Port: intstr.FromInt32(8080)}}}
	}
	grace := int64(1)
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PodSpec{NodeName: nodeName, Containers: []v1.Container{c},
		TerminationGracePeriodSeconds: &grace}}
}

// watch follows all pods from a resource version on until done; wait returns
// then. Events are taken at once: the server gives up on watchers that do not.
func (b *bench) watch(ctx context.Context, from string, done func(t watch.EventType, p *v1.Pod) bool) (wait func() error, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	pods := b.Client.CoreV1().Pods("default")
	if from == "" {
		list, err := pods.List(ctx, metav1.ListOptions{})
		if err != nil {
			cancel()
			return nil, err
		}
		from = list.ResourceVersion
	}
	// On a machine that is busy with starts, connections break.
	w, err := toolswatch.NewRetryWatcherWithContext(ctx, from, &cache.ListWatch{WatchFuncWithContext: func(ctx context.Context,
		o metav1.ListOptions) (watch.Interface, error) {
		return pods.Watch(ctx, o)
	}})
	if err != nil {
		cancel()
		return nil, err
	}
	ended := make(chan error, 1)
	go func() {
		defer cancel()
		defer w.Stop()
		for e := range w.ResultChan() {
			if p, ok := e.Object.(*v1.Pod); ok && done(e.Type, p) {
				ended <- nil
				return
			}
		}
		ended <- errors.New("the watch ended")
	}()
	return func() error { return <-ended }, nil
}

// create makes n pods at once and returns when each was first seen Running
// (or, probed, Ready).
func (b *bench) create(ctx context.Context, prefix string, n int, probed bool) (first, last time.Duration, err error) {
	left := n
	seen := map[string]bool{}
	began := time.Now()
	wait, err := b.watch(ctx, "", func(t watch.EventType, p *v1.Pod) bool {
		ok := p.Status.Phase == v1.PodRunning
		if probed {
			ok = slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
				return c.Type == v1.PodReady &&
					c.Status == v1.ConditionTrue
			})
		}
		if t != watch.Deleted && ok && strings.HasPrefix(p.Name, prefix) && !seen[p.Name] {
			seen[p.Name] = true
			if left == n {
				first = time.Since(began)
			}
			left--
		}
		return left == 0
	})
	if err != nil {
		return 0, 0, err
	}
	errs := make(chan error, n)
	for i := range n {
		go func() {
			_, err := b.Client.CoreV1().Pods("default").Create(ctx, b.pod(fmt.Sprintf("%s%d", prefix, i), probed), metav1.CreateOptions{})
			errs <- err
		}()
	}
	for range n {
		if err := <-errs; err != nil {
			return 0, 0, err
		}
	}
	err = wait()
	return first, time.Since(began), err
}

// drop deletes one pod, waits until it is gone and tells how long that took.
func (b *bench) drop(ctx context.Context, name string) (time.Duration, error) {
	wait, err := b.watch(ctx, "", func(t watch.EventType, p *v1.Pod) bool { return t == watch.Deleted && p.Name == name })
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := b.Client.CoreV1().Pods("default").Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return 0, err
	}
	err = wait()
	return time.Since(began), err
}

// empty deletes every pod and waits until the last is gone.
func (b *bench) empty(ctx context.Context) error {
	pods := b.Client.CoreV1().Pods("default")
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return err
	}
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) == 0 {
		return err
	}
	left := map[string]bool{}
	for _, p := range list.Items {
		left[p.Name] = true
	}
	wait, err := b.watch(ctx, list.ResourceVersion, func(t watch.EventType, p *v1.Pod) bool {
		if t == watch.Deleted {
			delete(left, p.Name)
		}
		return len(left) == 0
	})
	if err != nil {
		return err
	}
	return wait()
}

// usage is the CPU ticks and the resident set of some processes.
type usage struct {
	ticks, rss float64 // 1/100 s, MiB
}

// processes are those whose command line names the rig, but for the control
// plane: agent, containerd, shims.
func (b *bench) processes() map[int]usage {
	out := map[int]usage{}
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return out
	}
	for _, p := range procs {
		cmdline, err := os.ReadFile(p)
		text := string(cmdline)
		if err != nil || !strings.Contains(text, b.Dir) || strings.Contains(text, b.Dir+"/server") && !strings.Contains(text, "agent\x00") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(p)))
		if err != nil {
			continue
		}
		if u, ok := usageOf(pid); ok {
			out[pid] = u
		}
	}
	return out
}

func usageOf(pid int) (usage, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return usage{}, false
	}
	f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+2:]))
	user, _ := strconv.ParseFloat(f[11], 64)
	system, _ := strconv.ParseFloat(f[12], 64)
	pages, _ := strconv.ParseFloat(f[21], 64)
	return usage{user + system, pages * float64(os.Getpagesize()) / (1 << 20)}, true
}

// percent measures CPU time of everything but the control plane, and of
// the agent alone, in percent of one core.
func (b *bench) percent(length time.Duration) (all, agent float64) {
	time.Sleep(10 * time.Second) // let the starts come to rest
	before := b.processes()
	time.Sleep(length)
	for pid, now := range b.processes() {
		d := (now.ticks - before[pid].ticks) / length.Seconds()
		all += d
		if pid == b.agent.Process.Pid {
			agent = d
		}
	}
	return all, agent
}
