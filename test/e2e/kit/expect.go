package kit

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RunPods creates pods and waits until of each there came what it says.
func (c *Cluster) RunPods(t *testing.T, pods []*v1.Pod) {
	for _, p := range pods {
		if _, err := c.Client.CoreV1().Pods("default").Create(context.Background(), p, metav1.CreateOptions{}); err != nil {
			t.Errorf("creating pod %s: %v", p.Name, err)
		}
	}
	for _, p := range pods {
		t.Run(p.Name, func(t *testing.T) {
			sub := c.In(t)
			sub.Eventually("pod "+p.Name, func() (bool, string) {
				wrong := sub.Differs(p)
				return len(wrong) == 0, strings.Join(wrong, "; ")
			})
		})
	}
}

// Expectations are the expectations among a pod's annotations.
func Expectations(p *v1.Pod) map[string]string {
	out := map[string]string{}
	for _, key := range []string{"phase", "reason", "state", "restarts", "message", "ready", "log", "event"} {
		if v, ok := p.Annotations[key]; ok {
			out[key] = v
		}
	}
	return out
}

// Differs compares a pod with what its manifest expects of it.
func (c *Cluster) Differs(manifest *v1.Pod) (wrong []string) {
	p, err := c.Client.CoreV1().Pods("default").Get(context.Background(), manifest.Name, metav1.GetOptions{})
	if err != nil {
		return []string{err.Error()}
	}
	bad := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	for key, want := range Expectations(manifest) {
		switch key {
		case "phase":
			if string(p.Status.Phase) != want {
				bad("phase %s, want %s", p.Status.Phase, want)
			}
		case "reason":
			if p.Status.Reason != want {
				bad("reason %q, want %q", p.Status.Reason, want)
			}
		case "ready":
			if got := strconv.FormatBool(PodReady(p)); !strings.EqualFold(got, want) {
				bad("ready %s, want %s", got, want)
			}
		case "state":
			for _, word := range strings.Fields(want) {
				name, state, _ := strings.Cut(word, "=")
				if got := StateOf(ContainerStatus(p, name)); got != state {
					bad("container %s is %s, want %s", name, got, state)
				}
			}
		case "restarts":
			if !restartsHold(p, want) {
				bad("restarts, want %s (%s)", want, Describe(p))
			}
		case "message":
			if got := messageOf(ContainerStatus(p, "c")); !regexp.MustCompile(want).MatchString(got) {
				bad("message %q, want %q", got, want)
			}
		case "log", "event":
		}
	}
	if len(wrong) > 0 {
		return wrong // what follows is dearer
	}
	if want, ok := manifest.Annotations["log"]; ok {
		out, err := c.TryKubectl("", "logs", manifest.Name, "-c", "c")
		if err != nil {
			return []string{err.Error()}
		}
		wrong = append(wrong, Unmatched("log", want, strings.Split(out, "\n"))...)
	}
	if want, ok := manifest.Annotations["event"]; ok {
		wrong = append(wrong, Unmatched("event", want, c.PodEvents(p))...)
	}
	return wrong
}

// Unmatched names the patterns that no line matches, and those starting with
// "! " that one does.
func Unmatched(what, patterns string, lines []string) (wrong []string) {
	for _, pattern := range strings.Split(patterns, "\n") {
		pattern, none := strings.CutPrefix(pattern, "! ")
		re := regexp.MustCompile(pattern)
		found := false
		for _, l := range lines {
			found = found || re.MatchString(l)
		}
		if found == none {
			wrong = append(wrong, fmt.Sprintf("%s %q found %v in %q", what, pattern, found, lines))
		}
	}
	return wrong
}

// ContainerStatus is the status of the named container; empty if there is none.
func ContainerStatus(p *v1.Pod, name string) *v1.ContainerStatus {
	for _, list := range [][]v1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses,
		p.Status.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return &v1.ContainerStatus{}
}

// StateOf is the state of a container, with its reason after a slash.
func StateOf(s *v1.ContainerStatus) string {
	switch {
	case s.State.Running != nil:
		return "running"
	case s.State.Terminated != nil:
		return "terminated/" + s.State.Terminated.Reason
	case s.State.Waiting != nil:
		return "waiting/" + s.State.Waiting.Reason
	}
	return "nowhere"
}

func messageOf(s *v1.ContainerStatus) string {
	switch {
	case s.State.Terminated != nil:
		return s.State.Terminated.Message
	case s.State.Waiting != nil:
		return s.State.Waiting.Message
	}
	return ""
}

// restartsHold checks "NAME=N" or "NAME>=N".
func restartsHold(p *v1.Pod, want string) bool {
	name, number, exact := strings.Cut(want, "=")
	name, atLeast := strings.CutSuffix(name, ">")
	n, err := strconv.Atoi(number)
	got := int(ContainerStatus(p, name).RestartCount)
	return err == nil && exact && (got == n || atLeast && got > n)
}
