package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// starts creates pods one after the other.
func (b *bench) starts(ctx context.Context) error {
	const n = 30
	before, err := b.counters(ctx)
	if err != nil {
		return err
	}
	var took []time.Duration
	for i := range n {
		_, last, err := b.create(ctx, fmt.Sprintf("start-%d-", i), 1, false)
		if err != nil {
			return err
		}
		took = append(took, last)
	}
	after, err := b.counters(ctx)
	if err != nil {
		return err
	}
	cri := time.Duration((after.cri - before.cri) / n * float64(time.Second))
	med := quantile(took, 0.5)
	fmt.Printf("start     one pod created -> Running in the API: median %s, p99 %s, %.2f x floor (bar 1.25; upstream 475 ms)\n", ms(med), ms(quantile(took, 0.99)), float64(med)/float64(b.floorOne))
	fmt.Printf("start     the agent's own share (without the runtime's %s): median %s, p99 %s (bar 50 ms)\n", ms(cri), ms(med-cri), ms(quantile(took, 0.99)-cri))
	fmt.Printf("start     API requests of the agent per pod, heartbeats and events included: %.1f (bar 3 from bind to Running)\n", (after.api-before.api)/n)
	return nil
}

func (b *bench) bursts(ctx context.Context) error {
	for _, n := range []int{60, 100} {
		first, last, err := b.create(ctx, fmt.Sprintf("burst-%d-", n), n, false)
		if err != nil {
			return err
		}
		fmt.Printf("burst     %d pods at once: first %s, last %s, %.2f x floor (bar 1.3; upstream 7.6-8.1 s for 60)\n", n, ms(first), ms(last), float64(last)/float64(b.floorMany[n]))
		if err := b.empty(ctx); err != nil {
			return err
		}
	}
	return nil
}

// deletions measures from the status that shows the last container ended, or
// from the deletion where that is not shown, to the object's end.
func (b *bench) deletions(ctx context.Context) error {
	const n = 30
	var whole, tail []time.Duration
	for i := range n {
		name := fmt.Sprintf("delete-%d-", i)
		if _, _, err := b.create(ctx, name, 1, false); err != nil {
			return err
		}
		before, err := b.counters(ctx)
		if err != nil {
			return err
		}
		wait, err := b.watch(ctx, "", func(t watch.EventType, p *v1.Pod) bool { return t == watch.Deleted && strings.HasPrefix(p.Name, name) })
		if err != nil {
			return err
		}
		began := time.Now()
		if err := b.Client.CoreV1().Pods("default").Delete(ctx, name+"0", metav1.DeleteOptions{}); err != nil {
			return err
		}
		if err := wait(); err != nil {
			return err
		}
		took := time.Since(began)
		after, err := b.counters(ctx)
		if err != nil {
			return err
		}
		whole = append(whole, took)
		tail = append(tail, took-time.Duration((after.stop-before.stop)*float64(time.Second)))
	}
	fmt.Printf("delete    deleted -> gone: median %s, p99 %s; without the runtime's stop of the container: median %s, p99 %s (bar 100 ms p99; upstream 737 ms whole)\n",
		ms(quantile(whole, 0.5)), ms(quantile(whole, 0.99)), ms(quantile(tail, 0.5)), ms(quantile(tail, 0.99)))
	return nil
}

// memory is the agent's resident set with 0, 50 and 110 probed pods.
func (b *bench) memory(ctx context.Context) error {
	bars := map[int]int{0: 50, 50: 70, 110: 90}
	have := 0
	for _, n := range []int{0, 50, 110} {
		if n > have {
			if _, _, err := b.create(ctx, fmt.Sprintf("rss-%d-", n), n-have, true); err != nil {
				return err
			}
			have = n
		}
		time.Sleep(15 * time.Second) // past the burst
		u, _ := usageOf(b.agent.Process.Pid)
		fmt.Printf("rss       agent with %d pods with probes: %.0f MiB (bar %d; upstream 85 / 114 / -)\n", n, u.rss, bars[n])
	}
	return nil
}

func (b *bench) idle(ctx context.Context) error {
	if _, _, err := b.create(ctx, "idle-", 50, false); err != nil {
		return err
	}
	all, agent := b.percent()
	fmt.Printf("idle      50 pause pods, %v: agent, containerd and shims %.2f %% of one core, the agent alone %.2f %% (bar 2; upstream 15.5)\n", b.idleFor, all, agent)
	return nil
}

func (b *bench) probes(ctx context.Context) error {
	if _, _, err := b.create(ctx, "probed-", 110, true); err != nil {
		return err
	}
	all, agent := b.percent()
	fmt.Printf("probes    110 pods with an http readiness probe of 10 s, %v: together %.2f %% of one core, the agent alone %.2f %% (bar 5)\n", b.idleFor, all, agent)
	return nil
}

// pack starts as many pods as a node shall hold.
func (b *bench) pack(ctx context.Context) error {
	_, last, err := b.create(ctx, "many-", b.many, false)
	if err != nil {
		return err
	}
	time.Sleep(30 * time.Second)
	list, err := b.Client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	healthy := 0
	for _, p := range list.Items {
		if p.Status.Phase == v1.PodRunning && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].Ready && p.Status.ContainerStatuses[0].RestartCount == 0 {
			healthy++
		}
	}
	u, _ := usageOf(b.agent.Process.Pid)
	fmt.Printf("many      %d pods: last Running after %s, %d healthy half a minute later, agent %.0f MiB (bar 500)\n", b.many, ms(last), healthy, u.rss)
	return nil
}

// counters are sums of the agent's metrics: seconds in the runtime, seconds in
// stopping containers, API requests.
type counters struct{ cri, stop, api float64 }

func (b *bench) counters(ctx context.Context) (c counters, err error) {
	transport, err := rest.TransportFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true, CertData: b.Admin.CertData, KeyData: b.Admin.KeyData, CertFile: b.Admin.CertFile, KeyFile: b.Admin.KeyFile}})
	if err != nil {
		return c, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d/metrics", b.agent.Port), nil)
	if err != nil {
		return c, err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return c, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return c, fmt.Errorf("reading the agent's metrics: %s", resp.Status)
	}
	sc := bufio.NewScanner(resp.Body)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		name, value, ok := strings.Cut(sc.Text(), " ")
		v, err := strconv.ParseFloat(value, 64)
		if !ok || err != nil {
			continue
		}
		switch {
		case strings.HasPrefix(name, "kubelet_runtime_operations_duration_seconds_sum"):
			switch {
			case strings.Contains(name, `"stop_container"`):
				c.stop += v
			case strings.Contains(name, `"run_podsandbox"`), strings.Contains(name, `"create_container"`), strings.Contains(name, `"start_container"`):
				c.cri += v
			}
		case strings.HasPrefix(name, "rest_client_requests_total"):
			c.api += v
		}
	}
	return c, sc.Err()
}
