package why

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// signals name the numbers of signals (signal(7), the same on all platforms of ours).
var signals = map[int32]string{1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL",
	11: "SIGSEGV", 13: "SIGPIPE", 15: "SIGTERM"}

// containerEnd tells how an instance of a container ended.
func containerEnd(w *World, p *v1.Pod, s v1.ContainerStatus, t *v1.ContainerStateTerminated) *Answer {
	c, path := containerOf(p, s.Name)
	var a *Answer
	after := ""
	if !t.StartedAt.IsZero() {
		after = " after " + t.FinishedAt.Sub(t.StartedAt.Time).Round(time.Second).String()
	}
	switch {
	case t.Reason == "OOMKilled":
		limit := "no limit of its own: the node or the pod ran out"
		if m, ok := c.Resources.Limits[v1.ResourceMemory]; ok {
			limit = "its limit is " + m.String()
		}
		a = found(Failing, "OOMKilled", "container %s was OOMKilled: it used more memory than it may (%s)", c.Name, limit).
			at(path + ".resources.limits.memory").remedy("raise the limit, or make the process use less")
	case t.Reason == "StartError" || t.Reason == "ContainerCannotRun" || t.ExitCode == 128 && strings.Contains(t.Message, "exec"):
		a = startFault(c, path, t.Message)
	case t.ExitCode == 127:
		a = found(Failing, "CommandNotFound", "container %s exits with 127: a command was not found (%s)", c.Name,
			brief(strings.Join(append(append([]string(nil), c.Command...), c.Args...), " "), 80)).at(path + ".command")
	case t.ExitCode == 126:
		a = found(Failing, "CommandDenied", "container %s exits with 126: its command cannot be executed", c.Name).at(path + ".command")
	case t.Signal != 0 || t.ExitCode > 128:
		n := t.Signal
		if n == 0 {
			n = t.ExitCode - 128
		}
		name := signals[n]
		if name == "" {
			name = fmt.Sprintf("signal %d", n)
		}
		a = found(Failing, "Signal", "container %s was ended by %s (exit code %d)%s", c.Name, name, t.ExitCode, after).at(path)
	case t.ExitCode == 0:
		a = found(Failing, "ExitsAtOnce", "container %s exits with 0%s and restartPolicy %s starts it again", c.Name, after,
			p.Spec.RestartPolicy).at("spec.restartPolicy").remedy("let the process stay in the foreground, or use a Job")
	default:
		a = found(Failing, "CrashLoop", "container %s exits with code %d%s", c.Name, t.ExitCode, after).at(path)
	}
	if line := w.Logs[s.Name]; line != "" {
		a.fact("last log", "%s", brief(line, 160)).from("log")
	} else if t.Message != "" {
		a.fact("message", "%s", brief(t.Message, 160))
	}
	return a.fact("ended", "%s ago", Age(w.Now, t.FinishedAt.Time)).
		remedy("berth kubectl logs %s -c %s -n %s --previous", p.Name, s.Name, p.Namespace)
}

// livenessKill tells that the agent itself restarts a container whose probe fails.
func livenessKill(p *v1.Pod, c v1.Container, path string, events []*v1.Event) *Answer {
	for _, e := range events {
		for _, kind := range []string{"Liveness", "Startup"} {
			probe, field := c.LivenessProbe, ".livenessProbe"
			if kind == "Startup" {
				probe, field = c.StartupProbe, ".startupProbe"
			}
			if e.Reason != "Killing" || probe == nil || !strings.Contains(e.Message, c.Name) ||
				!strings.Contains(e.Message, "failed "+strings.ToLower(kind)+" probe") {
				continue
			}
			return probeFault(p, c, path+field, kind, probe, events, "so the agent restarts it")
		}
	}
	return nil
}

// probeFault tells of a probe that fails.
func probeFault(p *v1.Pod, c v1.Container, field, kind string, probe *v1.Probe, events []*v1.Event, so string) *Answer {
	a := found(Failing, kind+"Probe", "%s probe of container %s fails (%s), %s", strings.ToLower(kind), c.Name, probeText(probe),
		so).at(field)
	for _, e := range events {
		if e.Reason == "Unhealthy" && strings.HasPrefix(e.Message, kind+" probe") {
			_, output, _ := strings.Cut(e.Message, ": ")
			a.Cause += ": " + brief(output, 120)
			break
		}
	}
	if number(probe) != 0 && len(c.Ports) > 0 && !declares(p, number(probe)) {
		a.fact("ports", "no container declares port %d", number(probe))
	}
	return a.remedy("try what the probe does by hand: berth kubectl exec -n %s %s -c %s -- ...", p.Namespace, p.Name, c.Name)
}

// probeText is what a probe does, shortly.
func probeText(p *v1.Probe) string {
	switch {
	case p.HTTPGet != nil:
		return fmt.Sprintf("GET :%s%s", p.HTTPGet.Port.String(), p.HTTPGet.Path)
	case p.TCPSocket != nil:
		return "TCP :" + p.TCPSocket.Port.String()
	case p.GRPC != nil:
		return fmt.Sprintf("gRPC :%d", p.GRPC.Port)
	case p.Exec != nil:
		return "exec " + brief(strings.Join(p.Exec.Command, " "), 60)
	}
	return "no handler"
}

func number(p *v1.Probe) int32 {
	switch {
	case p.HTTPGet != nil && p.HTTPGet.Port.Type == intstr.Int:
		return p.HTTPGet.Port.IntVal
	case p.TCPSocket != nil && p.TCPSocket.Port.Type == intstr.Int:
		return p.TCPSocket.Port.IntVal
	}
	return 0
}

func declares(p *v1.Pod, port int32) bool {
	for _, c := range p.Spec.Containers {
		for _, d := range c.Ports {
			if d.ContainerPort == port {
				return true
			}
		}
	}
	return false
}

// podUnready tells why a pod that runs is not Ready.
func podUnready(w *World, p *v1.Pod, events []*v1.Event) *Answer {
	ready := podCondition(p, v1.PodReady)
	if p.Status.Phase != v1.PodRunning || ready != nil && ready.Status == v1.ConditionTrue {
		return nil
	}
	for _, s := range statuses(p) {
		c, path := containerOf(p, s.Name)
		started := s.Started != nil && *s.Started
		switch {
		case s.State.Running == nil || s.Ready:
		case !started && c.StartupProbe != nil:
			if lastEvent(events, "Unhealthy") == nil {
				return found(Waiting, "StartupProbe", "startup probe of container %s (%s) has not succeeded yet", c.Name,
					probeText(c.StartupProbe)).at(path + ".startupProbe")
			}
			return probeFault(p, c, path+".startupProbe", "Startup", c.StartupProbe, events, "so it does not count as started")
		case c.ReadinessProbe != nil:
			if lastEvent(events, "Unhealthy") == nil {
				return found(Waiting, "ReadinessProbe", "readiness probe of container %s (%s) has not succeeded yet", c.Name,
					probeText(c.ReadinessProbe)).at(path + ".readinessProbe")
			}
			return probeFault(p, c, path+".readinessProbe", "Readiness", c.ReadinessProbe, events, "so it gets no traffic")
		}
	}
	for i, g := range p.Spec.ReadinessGates {
		c := podCondition(p, g.ConditionType)
		if c == nil || c.Status != v1.ConditionTrue {
			return found(Waiting, "ReadinessGate", "readiness gate %s is not True: nothing has set that condition of the pod",
				g.ConditionType).
				at(fmt.Sprintf("spec.readinessGates[%d]", i)).remedy("start the controller that sets it, or remove the gate")
		}
	}
	if ready != nil {
		return found(Failing, "NotReady", "the pod is not Ready: %s: %s", ready.Reason, brief(ready.Message, 200))
	}
	return nil
}
