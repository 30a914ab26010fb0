package node

import (
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/test/e2e/kit"
)

var hookTests = []kit.Subtest{
	{Name: "hooks", Run: testHooks},
	{Name: "a hook is waited for", Run: testHookIsWaitedFor},
}

var resizeTests = []kit.Subtest{
	{Name: "resize of guaranteed pods", Run: testResizeGuaranteed},
	{Name: "resize of burstable pods", Run: testResizeBurstable},
	{Name: "resizes that are refused", Run: testResizeRefused},
	{Name: "resize below the usage", Run: testResizeBelowUsage},
	{Name: "resize of a running init container", Run: testResizeInit},
	{Name: "resize within quota and limits", Run: testResizeQuota},
	{Name: "resizes that wait", Run: testResizeWaits},
	{Name: "resources of a pod as a whole", Run: testPodLevelResources},
}

// testHooks: commands and requests before and after, of containers and of
// sidecars, over HTTP and HTTPS, each told to a server that writes them down.
func testHooks(a *kit.Namespace) {
	create(a, `{metadata: {name: server}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: c, image: berth.dev/toolbox:1, `+
		`command: [serve]}]}}`)
	server := podRuns(a, "server").Status.PodIP
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
			create(a, fmt.Sprintf(`{metadata: {name: %s}, spec: {terminationGracePeriodSeconds: 15, initContainers: [%s], `+
				`containers: [%s]}}`, name, init, main))
		}
	}
	for _, n := range names {
		podRuns(a, n)
	}
	a.K(append([]string{"delete", "pod", "--wait=false"}, names...)...)
	for _, n := range names {
		podGone(a, n)
	}
	log := a.K("logs", "server")
	for _, n := range names {
		for _, when := range []string{"post-", "pre-"} {
			if got := strings.Count(log, "GET /echo?msg="+when+n+" "); got != 1 {
				a.T.Errorf("%s%s was called %d times", when, n, got)
			}
		}
	}
	if !strings.Contains(log, `msg=pre-header-main from chosen.example.com as "kube-lifecycle/`) {
		a.T.Error("the host header or the agent's name are not as they should be")
	}
	if a.T.Failed() {
		a.T.Log(log)
	}
}

// testHookIsWaitedFor: a pod that is being deleted runs on until its hook is
// done; a hook longer than the grace does not hold it.
func testHookIsWaitedFor(a *kit.Namespace) {
	for name, spec := range map[string]string{
		"short": `terminationGracePeriodSeconds: 30, containers: [{name: c, image: berth.dev/toolbox:1, command: [pause], lifecycle: ` +
			`{preStop: {exec: {command: [sh, -c, "sleep 2; echo done > /proc/1/fd/1"]}}}}]`,
		"zero": `terminationGracePeriodSeconds: 30, containers: [{name: c, image: berth.dev/toolbox:1, command: [pause], lifecycle: ` +
			`{preStop: {sleep: {seconds: 0}}}}]`,
		"long": `terminationGracePeriodSeconds: 2, containers: [{name: c, image: berth.dev/toolbox:1, command: [pause], lifecycle: ` +
			`{preStop: {sleep: {seconds: 2}}}}]`,
	} {
		p := create(a, fmt.Sprintf("{metadata: {name: %s}, spec: {%s}}", name, spec))
		podRuns(a, name)
		ran := 0
		history(a, p, func() { a.K("delete", "pod", name, "--wait=false") }, func(*v1.Pod) bool { return false },
			func(_, now *v1.Pod) string {
				if now.DeletionTimestamp != nil && kit.StateOf(kit.ContainerStatus(now, "c")) == "running" {
					ran++
				}
				if now.Status.Phase == v1.PodFailed && name != "long" &&
					kit.StateOf(kit.ContainerStatus(now, "c")) == "terminated/StartError" {
					return "failed"
				}
				return ""
			})
		if ran == 0 {
			a.T.Errorf("%s: not seen running while it was being deleted", name)
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
func sizedPod(a *kit.Namespace, name, more string, containers ...sized) *v1.Pod {
	a.T.Helper()
	var list []string
	for _, s := range containers {
		c := strings.TrimSuffix(s.yaml(), "}") + `, "image": "berth.dev/toolbox:1", "command": ["pause"]` + s.rest + "}"
		list = append(list, c)
	}
	create(a, fmt.Sprintf(`{metadata: {name: %s}, spec: {restartPolicy: OnFailure, terminationGracePeriodSeconds: 0, %s containers: [%s]}}`,
		name, more, strings.Join(list, ", ")))
	podRuns(a, name)
	return sizedAs(a, name, containers...)
}

// sizedAs waits until status and kernel say that a pod has these resources and
// that no resize is under way.
func sizedAs(a *kit.Namespace, name string, containers ...sized) *v1.Pod {
	a.T.Helper()
	p := podUntil(a, name, "has the resources", func(p *v1.Pod) string {
		for _, c := range p.Status.Conditions {
			if c.Type == v1.PodResizePending || c.Type == v1.PodResizeInProgress {
				return fmt.Sprint(c)
			}
		}
		for _, s := range containers {
			got, want := kit.ContainerStatus(p, s.name), s.requirements()
			if got.Resources == nil || !sameQuantities(got.Resources.Requests, want.Requests) || !sameQuantities(got.Resources.Limits,
				want.Limits) || !sameQuantities(got.AllocatedResources, want.Requests) {
				return fmt.Sprintf("%s has %+v, allocated %v, want %+v", s.name, got.Resources, got.AllocatedResources, want)
			}
		}
		if !kit.PodReady(p) {
			return "not ready"
		}
		return ""
	})
	for _, s := range containers {
		limited(a, name, s)
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
func limited(a *kit.Namespace, pod string, s sized) {
	a.T.Helper()
	const script = `if [ -e /sys/fs/cgroup/memory.max ]; then cat /sys/fs/cgroup/memory.max; cat /sys/fs/cgroup/cpu.max; else cat ` +
		`/sys/fs/cgroup/memory/memory.limit_in_bytes; cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us; fi`
	out := strings.Fields(a.K("exec", pod, "-c", s.name, "--", "sh", "-c", script))
	if len(out) < 2 {
		a.T.Fatalf("%s/%s: the cgroup says %q", pod, s.name, out)
	}
	if want := s.memoryLimit; want != "" {
		if q := resource.MustParse(want); out[0] != fmt.Sprint(q.Value()) {
			a.T.Errorf("%s/%s: the memory limit is %s, want %s", pod, s.name, out[0], want)
		}
	}
	if want := s.cpuLimit; want != "" {
		q := resource.MustParse(want)
		if quota := max(q.MilliValue()*100, 1000); out[1] != fmt.Sprint(quota) {
			a.T.Errorf("%s/%s: the quota is %s, want %d", pod, s.name, out[1], quota)
		}
	}
}

// resize patches containers' resources through the subresource.
func resize(a *kit.Namespace, name string, containers ...sized) error {
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
	_, err := a.API.CoreV1().Pods(a.Name).Patch(a.Ctx, name, types.StrategicMergePatchType,
		[]byte(`{"spec": {`+strings.Join(parts, ", ")+`}}`), metav1.PatchOptions{}, "resize")
	return err
}

func even(name, cpu, memory string) sized { return sized{name, cpu, cpu, memory, memory, ""} }

// testResizeGuaranteed: up and back down, in opposite directions, with and
// without a restart, of three containers at once.
func testResizeGuaranteed(a *kit.Namespace) {
	for policy, restarts := range map[string]int32{"NotRequired": 0, "RestartContainer": 2} {
		name := strings.ToLower(policy)
		c := even("c", "20m", "35Mi")
		c.rest = fmt.Sprintf(`, "resizePolicy": [{"resourceName": "cpu", "restartPolicy": %q}, {"resourceName": "memory", `+
			`"restartPolicy": %[1]q}]`, policy)
		sizedPod(a, name, `initContainers: [{name: side, image: berth.dev/toolbox:1, command: [pause], restartPolicy: Always, resources: `+
			`{requests: {cpu: 20m, memory: 35Mi}, limits: {cpu: 20m, memory: 35Mi}}}],`, c)
		a.Must(resize(a, name, even("c", "25m", "30Mi")))
		sizedAs(a, name, even("c", "25m", "30Mi"))
		a.Must(resize(a, name, even("c", "20m", "35Mi")))
		p := sizedAs(a, name, even("c", "20m", "35Mi"))
		if n := kit.ContainerStatus(p, "c").RestartCount; n != restarts {
			a.T.Errorf("%s: %d restarts, want %d", name, n, restarts)
		}
		side := even("side", "25m", "40Mi")
		side.rest = "init"
		a.Must(resize(a, name, side))
		sizedAs(a, name, even("side", "25m", "40Mi"))
	}
	was := []sized{even("c1", "20m", "35Mi"), even("c2", "22m", "37Mi"), even("c3", "24m", "39Mi")}
	sizedPod(a, "three", "", was...)
	now := []sized{even("c1", "25m", "40Mi"), even("c2", "17m", "32Mi"), even("c3", "29m", "44Mi")}
	a.Must(resize(a, "three", now...))
	sizedAs(a, "three", now...)
	a.Must(resize(a, "three", was...))
	sizedAs(a, "three", was...)
}

// testResizeBurstable: requests and limits one by one and added where there
// were none, values below what the kernel can tell apart, and a resize by
// update, read back from the subresource.
func testResizeBurstable(a *kit.Namespace) {
	base := sized{"c", "20m", "30m", "35Mi", "45Mi", ""}
	sizedPod(a, "burst", "", base)
	for _, to := range []sized{
		{"c", "25m", "30m", "35Mi", "45Mi", ""}, {"c", "20m", "35m", "35Mi", "45Mi", ""}, {"c", "20m", "30m", "40Mi", "45Mi", ""},
		{"c", "20m", "30m", "35Mi", "50Mi", ""},
		{"c", "15m", "35m", "40Mi", "40Mi", ""}, base,
	} {
		a.Must(resize(a, "burst", to))
		sizedAs(a, "burst", to)
	}
	sizedPod(a, "five", "", sized{name: "c1", cpu: "20m"}, sized{name: "c2", memory: "35Mi"}, sized{name: "c3", cpu: "20m", memory: "35Mi"},
		sized{name: "c4", cpu: "20m"}, sized{name: "c5", memory: "35Mi"})
	to := []sized{
		{name: "c1", cpu: "25m", cpuLimit: "35m"}, {name: "c2", memory: "30Mi", memoryLimit: "50Mi"},
		{name: "c3", cpu: "20m", memory: "30Mi"},
		{name: "c4", cpu: "15m", memory: "35Mi"}, {name: "c5", cpu: "20m", memory: "40Mi"},
	}
	a.Must(resize(a, "five", to...))
	sizedAs(a, "five", to...)
	small := []sized{{name: "c", cpu: "2m", cpuLimit: "10m"}, {name: "c", cpu: "1m", cpuLimit: "5m"}}
	sizedPod(a, "small", "", small[0])
	a.Must(resize(a, "small", small[1]))
	sizedAs(a, "small", small[1])
	a.Must(resize(a, "small", small[0]))
	sizedAs(a, "small", small[0])

	replaced := sized{name: "c", cpu: "25m", memory: "40Mi"}
	p := sizedPod(a, "replaced", "", sized{name: "c", cpu: "20m", memory: "35Mi"})
	p.Spec.Containers[0].Resources = replaced.requirements()
	_, err := a.API.CoreV1().Pods(a.Name).UpdateResize(a.Ctx, "replaced", p, metav1.UpdateOptions{})
	a.Must(err)
	if p := sizedAs(a, "replaced", replaced); p.Generation != 2 {
		a.T.Errorf("after one resize the generation is %d", p.Generation)
	}
	a.Until("the subresource is the pod", func() string {
		x, y := a.K("get", "pod", "replaced", "-o", "json"), a.K("get", "pod", "replaced", "--subresource=resize", "-o", "json")
		if x != y {
			return "they differ"
		}
		return ""
	})
}

func testResizeRefused(a *kit.Namespace) {
	sizedPod(a, "best", "", sized{name: "c"})
	sizedPod(a, "guaranteed", "", even("c", "20m", "35Mi"))
	sizedPod(a, "burst", "", sized{"c", "20m", "35m", "35Mi", "50Mi", ""})
	sizedPod(a, "requests", "", sized{name: "c", cpu: "20m", memory: "35Mi"}, sized{name: "d", cpu: "20m"})
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
		before := getPod(a, c.pod)
		_, err := a.API.CoreV1().Pods(a.Name).Patch(a.Ctx, c.pod, types.StrategicMergePatchType, []byte(`{"spec":`+c.patch+`}`),
			metav1.PatchOptions{}, "resize")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			a.T.Errorf("%s: %s: %v, want %q", c.pod, c.patch, err, c.want)
		}
		var status *apierrors.StatusError
		if strings.HasPrefix(c.want, "node") && (!errors.As(err, &status) || status.ErrStatus.Reason != metav1.StatusReasonForbidden ||
			len(status.ErrStatus.Details.Causes) == 0 || status.ErrStatus.Details.Causes[0].Type != "NodeCapacity") {
			a.T.Errorf("the refusal is %+v", status)
		}
		if after := getPod(a, c.pod); after.Generation != before.Generation {
			a.T.Errorf("%s changed all the same", c.pod)
		}
	}
}

// testResizeBelowUsage: a little less is fine, far too little waits with its
// reason, and going back ends the wait.
func testResizeBelowUsage(a *kit.Namespace) {
	at := func(memory string) sized { return sized{name: "c", memory: memory, memoryLimit: memory} }
	sizedPod(a, "shrinks", "", at("35Mi"))
	a.Must(resize(a, "shrinks", at("30Mi")))
	sizedAs(a, "shrinks", at("30Mi"))
	a.Must(resize(a, "shrinks", at("10Ki")))
	p := podUntil(a, "shrinks", "says why not", func(p *v1.Pod) string {
		for _, c := range p.Status.Conditions {
			switch {
			case c.Type == v1.PodResizePending:
				return "pending"
			case c.Type == v1.PodResizeInProgress && c.Reason == v1.PodReasonError &&
				len(kit.Unmatched("message", `memory limit \(\d+\) below current usage`, []string{c.Message})) == 0:
				return ""
			}
		}
		return fmt.Sprint(p.Status.Conditions)
	})
	if got := kit.ContainerStatus(p, "c").Resources.Limits.Memory().String(); got != "30Mi" {
		a.T.Errorf("the status says %s", got)
	}
	a.Must(resize(a, "shrinks", at("35Mi")))
	sizedAs(a, "shrinks", at("35Mi"))
}

func testResizeInit(a *kit.Namespace) {
	create(a, `{metadata: {name: starting}, spec: {terminationGracePeriodSeconds: 0, initContainers: [{name: i, image: `+
		`berth.dev/toolbox:1, command: [pause], resources: {requests: {cpu: 20m, memory: 35Mi}, limits: {cpu: 20m, memory: 35Mi}}}],
		containers: [{name: c, image: berth.dev/pause:1, resources: {requests: {cpu: 20m, memory: 35Mi}, limits: {cpu: 20m, memory: `+
		`35Mi}}}]}}`)
	for _, to := range []sized{even("i", "20m", "35Mi"), even("i", "25m", "40Mi"), even("i", "20m", "35Mi")} {
		to.rest = "init"
		if p := getPod(a, "starting"); p.Spec.InitContainers[0].Resources.Requests.Cpu().String() != to.cpu {
			a.Must(resize(a, "starting", to))
		}
		podUntil(a, "starting", "has the resources", func(p *v1.Pod) string {
			s, want := kit.ContainerStatus(p, "i"), to.requirements()
			if s.State.Running == nil || s.Resources == nil || !sameQuantities(s.Resources.Limits, want.Limits) {
				return fmt.Sprintf("%+v", s.Resources)
			}
			return ""
		})
		limited(a, "starting", to)
	}
}

// testResizeQuota: what a namespace has left, and what its limits say, holds
// for resizes, in the same words as at creation.
func testResizeQuota(a *kit.Namespace) {
	a.Make(`
{apiVersion: v1, kind: ResourceQuota, metadata: {name: resize-resource-quota}, spec: {hard: {cpu: 800m, memory: 800Mi}}}
---
{apiVersion: v1, kind: LimitRange, metadata: {name: resize-limit-ranger}, spec: {limits: [{type: Container, max: {cpu: 750m, memory: ` +
		`760Mi}, min: {cpu: 50m, memory: 50Mi}}]}}
`)
	a.UntilField("resourcequota/resize-resource-quota", "{.status.hard.cpu}", "800m")
	sizedPod(a, "one", "", even("c", "300m", "300Mi"))
	sizedPod(a, "two", "", even("c", "300m", "300Mi"))
	for _, c := range []struct{ cpu, memory, want string }{
		{"600m", "400Mi", "exceeded quota: resize-resource-quota, requested: cpu=300m, used: cpu=600m, limited: cpu=800m"},
		{"250m", "750Mi", "exceeded quota: resize-resource-quota, requested: memory=450Mi, used: memory=600Mi, limited: memory=800Mi"},
		{"600m", "750Mi", "exceeded quota: resize-resource-quota, requested: cpu=300m,memory=450Mi, used: cpu=600m,memory=600Mi, " +
			"limited: cpu=800m,memory=800Mi"},
		{"800m", "300Mi", "forbidden: maximum cpu usage per Container is 750m, but limit is 800m"},
		{"10m", "300Mi", "forbidden: minimum cpu usage per Container is 50m, but request is 10m"},
		{"10m", "10Mi", "minimum memory usage per Container is 50Mi, but request is 10Mi"},
	} {
		a.Until("refused: "+c.want, func() string {
			if err := resize(a, "one", even("c", c.cpu, c.memory)); err == nil || !strings.Contains(err.Error(), c.want) {
				return fmt.Sprint(err)
			}
			return ""
		})
	}
	a.Must(resize(a, "one", even("c", "400m", "400Mi")))
	sizedAs(a, "one", even("c", "400m", "400Mi"))
}

// testResizeWaits: of those that wait for room the one with the higher priority
// goes first, then the guaranteed, then who waited longest; what one gives up
// makes room for the next.
func testResizeWaits(a *kit.Namespace) {
	a.Make(`{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: e2e-first}, value: 1000}`)
	defer a.K("delete", "priorityclass", "e2e-first")
	free := freeCPU(a)
	most, little := fmt.Sprintf("%dm", 2*free/3), fmt.Sprintf("%dm", free/16)
	sizedPod(a, "holds", "", sized{name: "c", cpu: most, cpuLimit: most})
	sizedPod(a, "first", "priorityClassName: e2e-first,", sized{name: "c", cpu: little, cpuLimit: little})
	sizedPod(a, "second", "", even("c", little, "100Mi"))
	sizedPod(a, "third", "", sized{name: "c", cpu: little, cpuLimit: little})
	sizedPod(a, "fourth", "", sized{name: "c", cpu: little, cpuLimit: little})
	deferred := func(name string) {
		a.T.Helper()
		podUntil(a, name, "waits", func(p *v1.Pod) string {
			for _, c := range p.Status.Conditions {
				if c.Type == v1.PodResizePending && c.Reason == v1.PodReasonDeferred {
					return ""
				}
			}
			return fmt.Sprint(p.Status.Conditions)
		})
	}
	for _, name := range []string{"third", "second", "first", "fourth"} {
		a.Must(resize(a, name, sized{name: "c", cpu: most, cpuLimit: most}))
		deferred(name)
	}
	order := []string{"holds", "first", "second", "third", "fourth"}
	for i := 0; i < 4; i++ {
		a.K("delete", "pod", order[i])
		want := sized{name: "c", cpu: most, cpuLimit: most}
		if order[i+1] == "second" {
			want.memory, want.memoryLimit = "100Mi", "100Mi"
		}
		sizedAs(a, order[i+1], want)
		for _, later := range order[i+2:] {
			deferred(later)
		}
	}
	a.K("delete", "pod", "fourth")
	part := func(n int64) sized {
		cpu := fmt.Sprintf("%dm", free*n/10)
		return sized{name: "c", cpu: cpu, cpuLimit: cpu}
	}
	a.Until("the node is free again", func() string {
		if now := freeCPU(a); now < free {
			return fmt.Sprint(now, " of ", free)
		}
		return ""
	})
	sizedPod(a, "a", "", part(5))
	sizedPod(a, "b", "", part(3))
	a.Must(resize(a, "b", part(6)))
	deferred("b")
	a.Must(resize(a, "a", part(2)))
	sizedAs(a, "b", part(6))
}

// freeCPU is what the node has left, in thousandths.
func freeCPU(a *kit.Namespace) int64 {
	a.T.Helper()
	node := a.Node()
	free := node.Status.Allocatable.Cpu().MilliValue()
	for _, p := range a.Pods("", "") {
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
func testPodLevelResources(a *kit.Namespace) {
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
		create(a, fmt.Sprintf(`{metadata: {name: %s}, spec: {terminationGracePeriodSeconds: 0, %s containers: [{name: c1, image: `+
			`berth.dev/toolbox:1, command: [pause], resources: %s}]}}`, c.name, more, c.c1))
		if p := podRuns(a, c.name); string(p.Status.QOSClass) != c.class {
			a.T.Errorf("%s: class %s, want %s", c.name, p.Status.QOSClass, c.class)
		}
		limited(a, c.name, sized{name: "c1", memoryLimit: c.memory})
	}
}
