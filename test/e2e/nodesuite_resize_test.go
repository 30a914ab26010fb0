package e2e

import (
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var hookTests = []appTest{
	{"hooks", testHooks},
	{"a hook is waited for", testHookIsWaitedFor},
}

var resizeTests = []appTest{
	{"resize of guaranteed pods", testResizeGuaranteed},
	{"resize of burstable pods", testResizeBurstable},
	{"resizes that are refused", testResizeRefused},
	{"resize below the usage", testResizeBelowUsage},
	{"resize of a running init container", testResizeInit},
	{"resize within quota and limits", testResizeQuota},
	{"resizes that wait", testResizeWaits},
	{"resources of a pod as a whole", testPodLevelResources},
}

// testHooks: commands and requests before and after, of containers and of
// sidecars, over HTTP and HTTPS, each told to a server that writes them down.
func testHooks(a *apps) {
	a.create(`{metadata: {name: server}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: c, image: berth.dev/toolbox:1, ` +
		`command: [serve]}]}}`)
	server := a.podRuns("server").Status.PodIP
	hook := func(kind, name string) string {
		switch kind {
		case "exec":
			return fmt.Sprintf(`exec: {command: [wget, "http://%s:8080/echo?msg=%s"]}`, server, name)
		case "http":
			return fmt.Sprintf(`httpGet: {port: 8080, path: "/dial?to=%s:8080&path=echo%%3Fmsg=%s"}`, server, name)
		case "https":
			return fmt.Sprintf(`httpGet: {scheme: HTTPS, port: 8443, path: "/dial?to=%s:8080&path=echo%%3Fmsg=%s"}`, server, name)
		}
		return fmt.Sprintf(`httpGet: {host: %s, port: 8080, path: "/echo?msg=%s", httpHeaders: [{name: Host, value: chosen.example.com}]}`,
			server, name)
	}
	var names []string
	for _, kind := range []string{"exec", "http", "https", "header"} {
		for _, who := range []string{"main", "side"} {
			name := kind + "-" + who
			names = append(names, name)
			hooked := fmt.Sprintf(`name: hooked, image: berth.dev/toolbox:1, command: [pause], lifecycle: {postStart: {%s}, preStop: {%s}}`,
				hook(kind, "post-"+name), hook(kind, "pre-"+name))
			const relay = `{name: relay, image: berth.dev/toolbox:1, command: [serve, "8080", "tls:8443"], restartPolicy: Always, ` +
				`startupProbe: {periodSeconds: 1, failureThreshold: 30, httpGet: {scheme: HTTPS, port: 8443, path: "/echo?msg=startup"}}}`
			init, main := relay, "{"+hooked+"}"
			if who == "side" {
				init, main = relay+", {"+hooked+", restartPolicy: Always}", "{name: c, image: berth.dev/pause:1}"
			}
			a.create(fmt.Sprintf(`{metadata: {name: %s}, spec: {terminationGracePeriodSeconds: 15, initContainers: [%s], `+
				`containers: [%s]}}`, name, init, main))
		}
	}
	for _, n := range names {
		a.podRuns(n)
	}
	a.k(append([]string{"delete", "pod", "--wait=false"}, names...)...)
	for _, n := range names {
		a.podGone(n)
	}
	log := a.k("logs", "server")
	for _, n := range names {
		for _, when := range []string{"post-", "pre-"} {
			if got := strings.Count(log, "GET /echo?msg="+when+n+" "); got != 1 {
				a.t.Errorf("%s%s was called %d times", when, n, got)
			}
		}
	}
	if !strings.Contains(log, `msg=pre-header-main from chosen.example.com as "kube-lifecycle/`) {
		a.t.Error("the host header or the agent's name are not as they should be")
	}
	if a.t.Failed() {
		a.t.Log(log)
	}
}

// testHookIsWaitedFor: a pod that is being deleted runs on until its hook is
// done; a hook longer than the grace does not hold it.
func testHookIsWaitedFor(a *apps) {
	for name, spec := range map[string]string{
		"short": `terminationGracePeriodSeconds: 30, containers: [{name: c, image: berth.dev/toolbox:1, command: [pause], lifecycle: ` +
			`{preStop: {exec: {command: [sh, -c, "sleep 2; echo done > /proc/1/fd/1"]}}}}]`,
		"zero": `terminationGracePeriodSeconds: 30, containers: [{name: c, image: berth.dev/toolbox:1, command: [pause], lifecycle: ` +
			`{preStop: {sleep: {seconds: 0}}}}]`,
		"long": `terminationGracePeriodSeconds: 2, containers: [{name: c, image: berth.dev/toolbox:1, command: [pause], lifecycle: ` +
			`{preStop: {sleep: {seconds: 2}}}}]`,
	} {
		p := a.create(fmt.Sprintf("{metadata: {name: %s}, spec: {%s}}", name, spec))
		a.podRuns(name)
		ran := 0
		a.history(p, func() { a.k("delete", "pod", name, "--wait=false") }, func(*v1.Pod) bool { return false },
			func(_, now *v1.Pod) string {
				if now.DeletionTimestamp != nil && stateOf(containerStatus(now, "c")) == "running" {
					ran++
				}
				if now.Status.Phase == v1.PodFailed && name != "long" && stateOf(containerStatus(now, "c")) == "terminated/StartError" {
					return "failed"
				}
				return ""
			})
		if ran == 0 {
			a.t.Errorf("%s: not seen running while it was being deleted", name)
		}
	}
}

// sized is a container with resources; "" leaves one out.
type sized struct {
	name, cpu, cpuLimit, memory, memoryLimit string
	rest                                     string
}

func (s sized) list(pairs ...string) v1.ResourceList {
	var out v1.ResourceList
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			if out == nil {
				out = v1.ResourceList{}
			}
			out[v1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
		}
	}
	return out
}

func (s sized) requirements() v1.ResourceRequirements {
	return v1.ResourceRequirements{Requests: s.list("cpu", s.cpu, "memory", s.memory), Limits: s.list("cpu", s.cpuLimit, "memory",
		s.memoryLimit)}
}

func (s sized) yaml() string {
	var parts []string
	for _, l := range []struct{ name, cpu, memory string }{{"requests", s.cpu, s.memory}, {"limits", s.cpuLimit, s.memoryLimit}} {
		var in []string
		for _, kv := range [][2]string{{"cpu", l.cpu}, {"memory", l.memory}} {
			if kv[1] != "" {
				in = append(in, fmt.Sprintf("%q: %q", kv[0], kv[1]))
			}
		}
		if len(in) > 0 {
			parts = append(parts, fmt.Sprintf("%q: {%s}", l.name, strings.Join(in, ", ")))
		}
	}
	return fmt.Sprintf(`{"name": %q, "resources": {%s}}`, s.name, strings.Join(parts, ", "))
}

// sizedPod makes a pod of containers and waits until it runs with them.
func (a *apps) sizedPod(name, more string, containers ...sized) *v1.Pod {
	a.t.Helper()
	var list []string
	for _, s := range containers {
		c := strings.TrimSuffix(s.yaml(), "}") + `, "image": "berth.dev/toolbox:1", "command": ["pause"]` + s.rest + "}"
		list = append(list, c)
	}
	a.create(fmt.Sprintf(`{metadata: {name: %s}, spec: {restartPolicy: OnFailure, terminationGracePeriodSeconds: 0, %s containers: [%s]}}`,
		name, more, strings.Join(list, ", ")))
	a.podRuns(name)
	return a.sizedAs(name, containers...)
}

// sizedAs waits until status and kernel say that a pod has these resources and
// that no resize is under way.
func (a *apps) sizedAs(name string, containers ...sized) *v1.Pod {
	a.t.Helper()
	p := a.podUntil(name, "has the resources", func(p *v1.Pod) string {
		for _, c := range p.Status.Conditions {
			if c.Type == v1.PodResizePending || c.Type == v1.PodResizeInProgress {
				return fmt.Sprint(c)
			}
		}
		for _, s := range containers {
			got, want := containerStatus(p, s.name), s.requirements()
			if got.Resources == nil || !sameQuantities(got.Resources.Requests, want.Requests) || !sameQuantities(got.Resources.Limits,
				want.Limits) || !sameQuantities(got.AllocatedResources, want.Requests) {
				return fmt.Sprintf("%s has %+v, allocated %v, want %+v", s.name, got.Resources, got.AllocatedResources, want)
			}
		}
		if !podReady(p) {
			return "not ready"
		}
		return ""
	})
	for _, s := range containers {
		a.limited(name, s)
	}
	return p
}

// sameQuantities compares cpu and memory as they are written, and no less.
func sameQuantities(got, want v1.ResourceList) bool {
	for _, r := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		g, ok1 := got[r]
		w, ok2 := want[r]
		if ok1 != ok2 || g.String() != w.String() {
			return false
		}
	}
	return true
}

// limited compares a container's cgroup with its limits.
func (a *apps) limited(pod string, s sized) {
	a.t.Helper()
	const script = `if [ -e /sys/fs/cgroup/memory.max ]; then cat /sys/fs/cgroup/memory.max; cat /sys/fs/cgroup/cpu.max; else cat ` +
		`/sys/fs/cgroup/memory/memory.limit_in_bytes; cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us; fi`
	out := strings.Fields(a.k("exec", pod, "-c", s.name, "--", "sh", "-c", script))
	if len(out) < 2 {
		a.t.Fatalf("%s/%s: the cgroup says %q", pod, s.name, out)
	}
	if want := s.memoryLimit; want != "" {
		if q := resource.MustParse(want); out[0] != fmt.Sprint(q.Value()) {
			a.t.Errorf("%s/%s: the memory limit is %s, want %s", pod, s.name, out[0], want)
		}
	}
	if want := s.cpuLimit; want != "" {
		q := resource.MustParse(want)
		if quota := max(q.MilliValue()*100, 1000); out[1] != fmt.Sprint(quota) {
			a.t.Errorf("%s/%s: the quota is %s, want %d", pod, s.name, out[1], quota)
		}
	}
}

// resize patches containers' resources through the subresource.
func (a *apps) resize(name string, containers ...sized) error {
	var main, init []string
	for _, s := range containers {
		if strings.Contains(s.rest, "init") {
			init = append(init, s.yaml())
		} else {
			main = append(main, s.yaml())
		}
	}
	var parts []string
	for key, list := range map[string][]string{"containers": main, "initContainers": init} {
		if len(list) > 0 {
			parts = append(parts, fmt.Sprintf("%q: [%s]", key, strings.Join(list, ", ")))
		}
	}
	_, err := a.api.CoreV1().Pods(a.ns).Patch(a.ctx, name, types.StrategicMergePatchType,
		[]byte(`{"spec": {`+strings.Join(parts, ", ")+`}}`), metav1.PatchOptions{}, "resize")
	return err
}

func even(name, cpu, memory string) sized { return sized{name, cpu, cpu, memory, memory, ""} }

// testResizeGuaranteed: up and back down, in opposite directions, with and
// without a restart, of three containers at once.
func testResizeGuaranteed(a *apps) {
	for policy, restarts := range map[string]int32{"NotRequired": 0, "RestartContainer": 2} {
		name := strings.ToLower(policy)
		c := even("c", "20m", "35Mi")
		c.rest = fmt.Sprintf(`, "resizePolicy": [{"resourceName": "cpu", "restartPolicy": %q}, {"resourceName": "memory", `+
			`"restartPolicy": %[1]q}]`, policy)
		a.sizedPod(name, `initContainers: [{name: side, image: berth.dev/toolbox:1, command: [pause], restartPolicy: Always, resources: `+
			`{requests: {cpu: 20m, memory: 35Mi}, limits: {cpu: 20m, memory: 35Mi}}}],`, c)
		a.must(a.resize(name, even("c", "25m", "30Mi")))
		a.sizedAs(name, even("c", "25m", "30Mi"))
		a.must(a.resize(name, even("c", "20m", "35Mi")))
		p := a.sizedAs(name, even("c", "20m", "35Mi"))
		if n := containerStatus(p, "c").RestartCount; n != restarts {
			a.t.Errorf("%s: %d restarts, want %d", name, n, restarts)
		}
		side := even("side", "25m", "40Mi")
		side.rest = "init"
		a.must(a.resize(name, side))
		a.sizedAs(name, even("side", "25m", "40Mi"))
	}
	was := []sized{even("c1", "20m", "35Mi"), even("c2", "22m", "37Mi"), even("c3", "24m", "39Mi")}
	a.sizedPod("three", "", was...)
	now := []sized{even("c1", "25m", "40Mi"), even("c2", "17m", "32Mi"), even("c3", "29m", "44Mi")}
	a.must(a.resize("three", now...))
	a.sizedAs("three", now...)
	a.must(a.resize("three", was...))
	a.sizedAs("three", was...)
}

// testResizeBurstable: requests and limits one by one and added where there
// were none, values below what the kernel can tell apart, and a resize by
// update, read back from the subresource.
func testResizeBurstable(a *apps) {
	base := sized{"c", "20m", "30m", "35Mi", "45Mi", ""}
	a.sizedPod("burst", "", base)
	for _, to := range []sized{
		{"c", "25m", "30m", "35Mi", "45Mi", ""}, {"c", "20m", "35m", "35Mi", "45Mi", ""}, {"c", "20m", "30m", "40Mi", "45Mi", ""},
		{"c", "20m", "30m", "35Mi", "50Mi", ""},
		{"c", "15m", "35m", "40Mi", "40Mi", ""}, base,
	} {
		a.must(a.resize("burst", to))
		a.sizedAs("burst", to)
	}
	a.sizedPod("five", "", sized{name: "c1", cpu: "20m"}, sized{name: "c2", memory: "35Mi"}, sized{name: "c3", cpu: "20m", memory: "35Mi"},
		sized{name: "c4", cpu: "20m"}, sized{name: "c5", memory: "35Mi"})
	to := []sized{
		{name: "c1", cpu: "25m", cpuLimit: "35m"}, {name: "c2", memory: "30Mi", memoryLimit: "50Mi"},
		{name: "c3", cpu: "20m", memory: "30Mi"},
		{name: "c4", cpu: "15m", memory: "35Mi"}, {name: "c5", cpu: "20m", memory: "40Mi"},
	}
	a.must(a.resize("five", to...))
	a.sizedAs("five", to...)
	small := []sized{{name: "c", cpu: "2m", cpuLimit: "10m"}, {name: "c", cpu: "1m", cpuLimit: "5m"}}
	a.sizedPod("small", "", small[0])
	a.must(a.resize("small", small[1]))
	a.sizedAs("small", small[1])
	a.must(a.resize("small", small[0]))
	a.sizedAs("small", small[0])

	replaced := sized{name: "c", cpu: "25m", memory: "40Mi"}
	p := a.sizedPod("replaced", "", sized{name: "c", cpu: "20m", memory: "35Mi"})
	p.Spec.Containers[0].Resources = replaced.requirements()
	_, err := a.api.CoreV1().Pods(a.ns).UpdateResize(a.ctx, "replaced", p, metav1.UpdateOptions{})
	a.must(err)
	if p := a.sizedAs("replaced", replaced); p.Generation != 2 {
		a.t.Errorf("after one resize the generation is %d", p.Generation)
	}
	a.until("the subresource is the pod", func() string {
		x, y := a.k("get", "pod", "replaced", "-o", "json"), a.k("get", "pod", "replaced", "--subresource=resize", "-o", "json")
		if x != y {
			return "they differ"
		}
		return ""
	})
}

func testResizeRefused(a *apps) {
	a.sizedPod("best", "", sized{name: "c"})
	a.sizedPod("guaranteed", "", even("c", "20m", "35Mi"))
	a.sizedPod("burst", "", sized{"c", "20m", "35m", "35Mi", "50Mi", ""})
	a.sizedPod("requests", "", sized{name: "c", cpu: "20m", memory: "35Mi"}, sized{name: "d", cpu: "20m"})
	for _, c := range []struct{ pod, patch, want string }{
		{"best", `{"containers":[{"name":"c","resources":{"requests":{"memory":"35Mi"}}}]}`,
			"Pod QOS Class may not change as a result of resizing"},
		{"best", `{"containers":[{"name":"c","resources":{"requests":{"cpu":"20m"}}}]}`,
			"Pod QOS Class may not change as a result of resizing"},
		{"guaranteed", `{"containers":[{"name":"c","resources":{"limits":null}}]}`, "resource limits cannot be removed"},
		{"burst", `{"containers":[{"name":"c","resources":{"requests":{"cpu":"25m"},"limits":null}}]}`,
			"resource limits cannot be removed"},
		{"burst", `{"containers":[{"name":"c","resources":{"requests":{"cpu":"35m","memory":"50Mi"}}}]}`,
			"Pod QOS Class may not change as a result of resizing"},
		{"requests", `{"containers":[{"name":"c","resources":{"requests":{"memory":null}}}]}`, "resource requests cannot be removed"},
		{"requests", `{"containers":[{"name":"d","resources":{"requests":null}}]}`, "resource requests cannot be removed"},
		{"requests", `{"containers":[{"name":"c","resources":{"requests":{"ephemeral-storage":"3"}}}]}`,
			"only cpu and memory resources are mutable"},
		{"requests", `{"$setElementOrder/containers":[{"name":"d"},{"name":"c"}]}`,
			"spec.containers[0].name: Forbidden: containers may not be renamed or reordered on resize"},
		{"guaranteed", `{"containers":[{"name":"c","resources":{"requests":{"cpu":"4000"},"limits":{"cpu":"4000"}}}]}`,
			"node didn't have enough allocatable resources: cpu, requested: 4000000, allocatable: "},
	} {
		before := a.getPod(c.pod)
		_, err := a.api.CoreV1().Pods(a.ns).Patch(a.ctx, c.pod, types.StrategicMergePatchType, []byte(`{"spec":`+c.patch+`}`),
			metav1.PatchOptions{}, "resize")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			a.t.Errorf("%s: %s: %v, want %q", c.pod, c.patch, err, c.want)
		}
		var status *apierrors.StatusError
		if strings.HasPrefix(c.want, "node") && (!errors.As(err, &status) || status.ErrStatus.Reason != metav1.StatusReasonForbidden ||
			len(status.ErrStatus.Details.Causes) == 0 || status.ErrStatus.Details.Causes[0].Type != "NodeCapacity") {
			a.t.Errorf("the refusal is %+v", status)
		}
		if after := a.getPod(c.pod); after.Generation != before.Generation {
			a.t.Errorf("%s changed all the same", c.pod)
		}
	}
}

// testResizeBelowUsage: a little less is fine, far too little waits with its
// reason, and going back ends the wait.
func testResizeBelowUsage(a *apps) {
	at := func(memory string) sized { return sized{name: "c", memory: memory, memoryLimit: memory} }
	a.sizedPod("shrinks", "", at("35Mi"))
	a.must(a.resize("shrinks", at("30Mi")))
	a.sizedAs("shrinks", at("30Mi"))
	a.must(a.resize("shrinks", at("10Ki")))
	p := a.podUntil("shrinks", "says why not", func(p *v1.Pod) string {
		for _, c := range p.Status.Conditions {
			switch {
			case c.Type == v1.PodResizePending:
				return "pending"
			case c.Type == v1.PodResizeInProgress && c.Reason == v1.PodReasonError &&
				len(unmatched("message", `memory limit \(\d+\) below current usage`, []string{c.Message})) == 0:
				return ""
			}
		}
		return fmt.Sprint(p.Status.Conditions)
	})
	if got := containerStatus(p, "c").Resources.Limits.Memory().String(); got != "30Mi" {
		a.t.Errorf("the status says %s", got)
	}
	a.must(a.resize("shrinks", at("35Mi")))
	a.sizedAs("shrinks", at("35Mi"))
}

func testResizeInit(a *apps) {
	a.create(`{metadata: {name: starting}, spec: {terminationGracePeriodSeconds: 0, initContainers: [{name: i, image: ` +
		`berth.dev/toolbox:1, command: [pause], resources: {requests: {cpu: 20m, memory: 35Mi}, limits: {cpu: 20m, memory: 35Mi}}}],
		containers: [{name: c, image: berth.dev/pause:1, resources: {requests: {cpu: 20m, memory: 35Mi}, limits: {cpu: 20m, memory: ` +
		`35Mi}}}]}}`)
	for _, to := range []sized{even("i", "20m", "35Mi"), even("i", "25m", "40Mi"), even("i", "20m", "35Mi")} {
		to.rest = "init"
		if p := a.getPod("starting"); p.Spec.InitContainers[0].Resources.Requests.Cpu().String() != to.cpu {
			a.must(a.resize("starting", to))
		}
		a.podUntil("starting", "has the resources", func(p *v1.Pod) string {
			s, want := containerStatus(p, "i"), to.requirements()
			if s.State.Running == nil || s.Resources == nil || !sameQuantities(s.Resources.Limits, want.Limits) {
				return fmt.Sprintf("%+v", s.Resources)
			}
			return ""
		})
		a.limited("starting", to)
	}
}

// testResizeQuota: what a namespace has left, and what its limits say, holds
// for resizes, in the same words as at creation.
func testResizeQuota(a *apps) {
	a.make(`
{apiVersion: v1, kind: ResourceQuota, metadata: {name: resize-resource-quota}, spec: {hard: {cpu: 800m, memory: 800Mi}}}
---
{apiVersion: v1, kind: LimitRange, metadata: {name: resize-limit-ranger}, spec: {limits: [{type: Container, max: {cpu: 750m, memory: ` +
		`760Mi}, min: {cpu: 50m, memory: 50Mi}}]}}
`)
	a.untilField("resourcequota/resize-resource-quota", "{.status.hard.cpu}", "800m")
	a.sizedPod("one", "", even("c", "300m", "300Mi"))
	a.sizedPod("two", "", even("c", "300m", "300Mi"))
	for _, c := range []struct{ cpu, memory, want string }{
		{"600m", "400Mi", "exceeded quota: resize-resource-quota, requested: cpu=300m, used: cpu=600m, limited: cpu=800m"},
		{"250m", "750Mi", "exceeded quota: resize-resource-quota, requested: memory=450Mi, used: memory=600Mi, limited: memory=800Mi"},
		{"600m", "750Mi", "exceeded quota: resize-resource-quota, requested: cpu=300m,memory=450Mi, used: cpu=600m,memory=600Mi, " +
			"limited: cpu=800m,memory=800Mi"},
		{"800m", "300Mi", "forbidden: maximum cpu usage per Container is 750m, but limit is 800m"},
		{"10m", "300Mi", "forbidden: minimum cpu usage per Container is 50m, but request is 10m"},
		{"10m", "10Mi", "minimum memory usage per Container is 50Mi, but request is 10Mi"},
	} {
		a.until("refused: "+c.want, func() string {
			if err := a.resize("one", even("c", c.cpu, c.memory)); err == nil || !strings.Contains(err.Error(), c.want) {
				return fmt.Sprint(err)
			}
			return ""
		})
	}
	a.must(a.resize("one", even("c", "400m", "400Mi")))
	a.sizedAs("one", even("c", "400m", "400Mi"))
}

// testResizeWaits: of those that wait for room the one with the higher priority
// goes first, then the guaranteed, then who waited longest; what one gives up
// makes room for the next.
func testResizeWaits(a *apps) {
	a.make(`{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: e2e-first}, value: 1000}`)
	defer a.k("delete", "priorityclass", "e2e-first")
	free := a.freeCPU()
	most, little := fmt.Sprintf("%dm", 2*free/3), fmt.Sprintf("%dm", free/16)
	a.sizedPod("holds", "", sized{name: "c", cpu: most, cpuLimit: most})
	a.sizedPod("first", "priorityClassName: e2e-first,", sized{name: "c", cpu: little, cpuLimit: little})
	a.sizedPod("second", "", even("c", little, "100Mi"))
	a.sizedPod("third", "", sized{name: "c", cpu: little, cpuLimit: little})
	a.sizedPod("fourth", "", sized{name: "c", cpu: little, cpuLimit: little})
	deferred := func(name string) {
		a.t.Helper()
		a.podUntil(name, "waits", func(p *v1.Pod) string {
			for _, c := range p.Status.Conditions {
				if c.Type == v1.PodResizePending && c.Reason == v1.PodReasonDeferred {
					return ""
				}
			}
			return fmt.Sprint(p.Status.Conditions)
		})
	}
	for _, name := range []string{"third", "second", "first", "fourth"} {
		a.must(a.resize(name, sized{name: "c", cpu: most, cpuLimit: most}))
		deferred(name)
	}
	order := []string{"holds", "first", "second", "third", "fourth"}
	for i := 0; i < 4; i++ {
		a.k("delete", "pod", order[i])
		want := sized{name: "c", cpu: most, cpuLimit: most}
		if order[i+1] == "second" {
			want.memory, want.memoryLimit = "100Mi", "100Mi"
		}
		a.sizedAs(order[i+1], want)
		for _, later := range order[i+2:] {
			deferred(later)
		}
	}
	a.k("delete", "pod", "fourth")
	part := func(n int64) sized {
		cpu := fmt.Sprintf("%dm", free*n/10)
		return sized{name: "c", cpu: cpu, cpuLimit: cpu}
	}
	a.until("the node is free again", func() string {
		if now := a.freeCPU(); now < free {
			return fmt.Sprint(now, " of ", free)
		}
		return ""
	})
	a.sizedPod("a", "", part(5))
	a.sizedPod("b", "", part(3))
	a.must(a.resize("b", part(6)))
	deferred("b")
	a.must(a.resize("a", part(2)))
	a.sizedAs("b", part(6))
}

// freeCPU is what the node has left, in thousandths.
func (a *apps) freeCPU() int64 {
	a.t.Helper()
	node := a.node()
	free := node.Status.Allocatable.Cpu().MilliValue()
	for _, p := range a.pods("", "") {
		if p.Status.Phase == v1.PodFailed || p.Status.Phase == v1.PodSucceeded || p.Spec.NodeName != node.Name {
			continue
		}
		for _, c := range p.Spec.Containers {
			free -= c.Resources.Requests.Cpu().MilliValue()
		}
	}
	return free
}

// testPodLevelResources: classes and cgroups of pods that say what they need as
// a whole, with and without containers that say so too.
func testPodLevelResources(a *apps) {
	for _, c := range []struct{ name, pod, c1, class, memory string }{
		{"containers", "", "{requests: {cpu: 50m, memory: 70Mi}, limits: {cpu: 50m, memory: 70Mi}}", "Guaranteed", "70Mi"},
		{"pod-only", "{requests: {cpu: 100m, memory: 100Mi}, limits: {cpu: 100m, memory: 100Mi}}", "{}", "Guaranteed", "100Mi"},
		{"both", "{requests: {cpu: 100m, memory: 100Mi}, limits: {cpu: 100m, memory: 100Mi}}",
			"{requests: {cpu: 50m, memory: 50Mi}, limits: {cpu: 100m, memory: 60Mi}}", "Guaranteed", "60Mi"},
		{"burst", "{requests: {cpu: 50m, memory: 50Mi}, limits: {cpu: 100m, memory: 100Mi}}", "{}", "Burstable", "100Mi"},
	} {
		more := ""
		if c.pod != "" {
			more = "resources: " + c.pod + ","
		}
		a.create(fmt.Sprintf(`{metadata: {name: %s}, spec: {terminationGracePeriodSeconds: 0, %s containers: [{name: c1, image: `+
			`berth.dev/toolbox:1, command: [pause], resources: %s}]}}`, c.name, more, c.c1))
		if p := a.podRuns(c.name); string(p.Status.QOSClass) != c.class {
			a.t.Errorf("%s: class %s, want %s", c.name, p.Status.QOSClass, c.class)
		}
		a.limited(c.name, sized{name: "c1", memoryLimit: c.memory})
	}
}
