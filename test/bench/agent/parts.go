package main

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// starts creates pods one after the other, in turns with the floor: the load
// of a shared machine moves both.
func (b *bench) starts(ctx context.Context) error {
	const n = 30
	// As on a node with more pods of the namespace: the first one of a namespace
	// also begins to watch its authority's ConfigMap.
	if _, _, err := b.create(ctx, "standing-", 1, false); err != nil {
		return err
	}
	var cri float64
	calls := map[string]float64{}
	var floor, took, own []time.Duration
	var ratios []float64
	for i := range n + 1 {
		direct, err := b.floor.burst(ctx, 1)
		if err != nil {
			return err
		}
		before, err := b.counters(ctx)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("start-%d-", i)
		_, last, err := b.create(ctx, name, 1, false)
		if err != nil {
			return err
		}
		// What is still to come of the start (events, say) is counted with it.
		if err := b.await(ctx, name+"0", "Started"); err != nil {
			return err
		}
		after, err := b.counters(ctx)
		if err != nil {
			return err
		}
		if _, err := b.drop(ctx, name+"0"); err != nil {
			return err
		}
		if i == 0 {
			continue // it warms the caches of both
		}
		inside := after.cri - before.cri
		cri += inside
		floor, took, ratios = append(floor, direct), append(took, last), append(ratios, float64(last)/float64(direct))
		own = append(own, last-time.Duration(inside*float64(time.Second)))
		for kind, v := range after.api {
			calls[kind] += (v - before.api[kind]) / n
		}
	}
	med := float64(quantile(took, 0.5)) / float64(quantile(floor, 0.5))
	b.note("start", "one pod by direct CRI calls: median, p99", "", fmt.Sprintf("%s, %s", ms(quantile(floor, 0.5)),
		ms(quantile(floor, 0.99))), none)
	b.note("start", "one pod created -> Running in the API: median, p99", "475 ms upstream", fmt.Sprintf("%s, %s", ms(quantile(took, 0.5)),
		ms(quantile(took, 0.99))), none)
	b.note("start", "the same, ratio of the medians (pairs: median, min..max)", "1.25 x", fmt.Sprintf("%.2f x (%s)", med, spread(ratios)),
		met(med <= 1.25))
	b.note("start", "the agent's own share: median, p99 (runtime: mean "+ms(time.Duration(cri/n*float64(time.Second)))+")", "p99 50 ms",
		fmt.Sprintf("%s, %s", ms(quantile(own, 0.5)), ms(quantile(own, 0.99))), met(quantile(own, 0.99) <= 50*time.Millisecond))
	return b.requests(calls)
}

// requests tells what the agent asked of the API for one pod.
func (b *bench) requests(calls map[string]float64) error {
	var all, events float64
	for _, kind := range slices.Sorted(maps.Keys(calls)) {
		if calls[kind] < 0.05 {
			continue
		}
		all += calls[kind]
		if strings.HasSuffix(kind, " events") {
			events += calls[kind]
		}
		b.note("requests", "  "+kind, "", fmt.Sprintf("%.1f", calls[kind]), none)
	}
	b.note("requests", "of the agent per pod from bind to Running, without events", "3", fmt.Sprintf("%.1f", all-events),
		met(all-events <= 3.05))
	b.note("requests", "the same with events, which go their own way and hold nothing up", "", fmt.Sprintf("%.1f", all), none)
	return nil
}

// await returns when the API holds an event of that reason about a pod.
func (b *bench) await(ctx context.Context, pod, reason string) error {
	w, err := b.Client.CoreV1().Events("default").Watch(ctx,
		metav1.ListOptions{FieldSelector: "reason=" + reason + ",involvedObject.name=" + pod, ResourceVersion: "0"})
	if err != nil {
		return err
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if e.Type == watch.Added || e.Type == watch.Modified {
			return nil
		}
	}
	return fmt.Errorf("no event %s about %s came", reason, pod)
}

// bursts creates many pods at once, in turns with the floor.
func (b *bench) bursts(ctx context.Context) error {
	for _, n := range []int{60, 100} {
		var floor, took []time.Duration
		var ratios []float64
		for i := range b.rounds {
			direct, err := b.floor.burst(ctx, n)
			if err != nil {
				return err
			}
			_, last, err := b.create(ctx, fmt.Sprintf("burst-%d-%d-", n, i), n, false)
			if err != nil {
				return err
			}
			if err := b.empty(ctx); err != nil {
				return err
			}
			floor, took, ratios = append(floor, direct), append(took, last), append(ratios, float64(last)/float64(direct))
		}
		med := float64(quantile(took, 0.5)) / float64(quantile(floor, 0.5))
		b.note("burst", fmt.Sprintf("%d pods at once, last: floor, agent (medians)", n), "7.6-8.1 s for 60 upstream",
			fmt.Sprintf("%s, %s", ms(quantile(floor, 0.5)), ms(quantile(took, 0.5))), none)
		b.note("burst", fmt.Sprintf("%d pods at once, ratio of the medians (pairs: median, min..max)", n), "1.3 x",
			fmt.Sprintf("%.2f x (%s)", med, spread(ratios)), met(med <= 1.3))
	}
	return nil
}

// deletions measures from the status that shows the last container ended, or
// from the deletion where that is not shown, to the object's end.
func (b *bench) deletions(ctx context.Context) error {
	const n = 30
	var whole, tail, own []time.Duration
	for i := range n {
		name := fmt.Sprintf("delete-%d-", i)
		if _, _, err := b.create(ctx, name, 1, false); err != nil {
			return err
		}
		before, err := b.counters(ctx)
		if err != nil {
			return err
		}
		took, err := b.drop(ctx, name+"0")
		if err != nil {
			return err
		}
		after, err := b.counters(ctx)
		if err != nil {
			return err
		}
		whole = append(whole, took)
		rest := took - time.Duration((after.stop-before.stop)*float64(time.Second))
		tail, own = append(tail, rest), append(own, rest-time.Duration((after.network-before.network)*float64(time.Second)))
	}
	b.note("delete", "deleted -> gone: median, p99", "737 ms upstream", fmt.Sprintf("%s, %s", ms(quantile(whole, 0.5)),
		ms(quantile(whole, 0.99))), none)
	b.note("delete", "the same without the runtime's stop of the container: median, p99", "p99 100 ms",
		fmt.Sprintf("%s, %s", ms(quantile(tail, 0.5)), ms(quantile(tail, 0.99))), met(quantile(tail, 0.99) <= 100*time.Millisecond))
	b.note("delete", "the agent's and the API's share of that: without the runtime's stop of the sandbox", "",
		fmt.Sprintf("%s, %s", ms(quantile(own, 0.5)), ms(quantile(own, 0.99))), none)
	return nil
}

// memory is the agent's resident set with 0, 50 and 110 probed pods.
func (b *bench) memory(ctx context.Context) error {
	bars := map[int]float64{0: 50, 50: 70, 110: 90}
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
		b.note("rss", fmt.Sprintf("agent with %d pods with probes", n), fmt.Sprintf("%.0f MiB", bars[n]), fmt.Sprintf("%.0f MiB", u.rss),
			met(u.rss <= bars[n]))
	}
	return nil
}

func (b *bench) idle(ctx context.Context) error {
	if _, _, err := b.create(ctx, "idle-", 50, false); err != nil {
		return err
	}
	all, agent := b.percent(b.idleFor)
	b.note("idle", fmt.Sprintf("50 pause pods, %v: agent, containerd and shims (agent alone)", b.idleFor), "2 % of a core",
		fmt.Sprintf("%.2f %% (%.2f %%)", all, agent), met(all <= 2))
	return nil
}

func (b *bench) probes(ctx context.Context) error {
	if _, _, err := b.create(ctx, "probed-", b.probed, true); err != nil {
		return err
	}
	all, agent := b.percent(b.idleFor / 2)
	b.note("probes", fmt.Sprintf("%d pods with an http readiness probe of 10 s, %v: the same", b.probed, b.idleFor/2), "5 % of a core",
		fmt.Sprintf("%.2f %% (%.2f %%)", all, agent), met(all <= 5))
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
		if p.Status.Phase == v1.PodRunning && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].Ready &&
			p.Status.ContainerStatuses[0].RestartCount == 0 {
			healthy++
		}
	}
	u, _ := usageOf(b.agent.Process.Pid)
	b.note("many", fmt.Sprintf("pods healthy half a minute after the last of %d ran (after %s, agent %.0f MiB)", b.many, ms(last), u.rss),
		"500", strconv.Itoa(healthy), met(healthy >= 500))
	return nil
}

// counters are sums of the agent's metrics: seconds in the runtime, seconds in
// stopping containers and sandboxes, bytes allocated, API requests.
type counters struct {
	cri, stop, network, allocated float64
	api                           map[string]float64 // by kind
}

func (b *bench) counters(ctx context.Context) (c counters, err error) {
	body, err := b.ask(ctx, "/metrics")
	if err != nil {
		return c, err
	}
	defer body.Close()
	c.api = map[string]float64{}
	sc := bufio.NewScanner(body)
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
			case strings.Contains(name, `"stop_podsandbox"`):
				c.network += v
			case strings.Contains(name, `"run_podsandbox"`), strings.Contains(name, `"create_container"`),
				strings.Contains(name, `"start_container"`):
				c.cri += v
			}
		case name == "go_memstats_alloc_bytes_total":
			c.allocated = v
		case strings.HasPrefix(name, "berth_agent_api_requests_total{"):
			kind := strings.Split(name, `"`) // resource, then verb
			c.api[kind[3]+" "+kind[1]] += v
		}
	}
	return c, sc.Err()
}
