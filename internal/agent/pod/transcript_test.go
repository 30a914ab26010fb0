package pod

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/internal/testkit/golden"
)

// TestTranscripts tells the life of pods. A script is a list of blocks: a
// command (with indented lines as its argument), a line of dashes, and all that
// happened until nothing more was to be done, ending with the status.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts found: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			w := newFixture(t)
			var out strings.Builder
			for _, block := range strings.Split(strings.TrimSpace(string(text)), "\n\n") {
				script, _, _ := strings.Cut(strings.Trim(block, "\n"), "\n----")
				if script == "" {
					continue
				}
				out.WriteString(script + "\n")
				if comment(script) {
					out.WriteString("\n")
					continue
				}
				out.WriteString("----\n" + run(t, w, script) + "\n")
			}
			golden.Check(t, file, strings.TrimRight(out.String(), "\n")+"\n")
		})
	}
}

// comment: every line of the block is one.
func comment(block string) bool {
	for _, l := range strings.Split(block, "\n") {
		if !strings.HasPrefix(l, "#") {
			return false
		}
	}
	return true
}

// diff shows the first line that differs and what follows it.
// run performs one command of a script and returns what happened.
func run(t *testing.T, w *fixture, script string) string {
	t.Helper()
	var lines []string
	for _, l := range strings.Split(script, "\n") {
		if !strings.HasPrefix(l, "#") {
			lines = append(lines, l)
		}
	}
	head := strings.Fields(lines[0])
	body := strings.Join(lines[1:], "\n")
	w.log = nil
	if err := command(w, head[0], head[1:], body); err != nil {
		t.Fatalf("%s: %v", lines[0], err)
	}
	if w.spec.Pod != nil {
		w.settle()
	}
	return strings.Join(append(w.log, w.summary()), "\n") + "\n"
}

func command(w *fixture, name string, args []string, body string) error {
	arg := func(i int) string {
		if i < len(args) {
			return args[i]
		}
		return ""
	}
	switch name {
	case "pod", "static", "change":
		pod := testPod("")
		if name == "change" {
			pod = w.spec.Pod.DeepCopy()
			pod.Generation++
		}
		if err := yaml.UnmarshalStrict([]byte(body), &pod.Spec); err != nil {
			return err
		}
		if name == "change" {
			w.spec.Pod = pod
			return nil
		}
		w.begin(pod)
		w.spec.Static = name == "static"
	case "advance":
		d, err := time.ParseDuration(arg(0))
		w.now = w.now.Add(d)
		return err
	case "exit":
		code, err := strconv.Atoi(arg(1))
		if err != nil {
			return err
		}
		reason := "Completed"
		if code != 0 {
			reason = "Error"
		}
		if arg(2) != "" {
			reason = arg(2)
		}
		w.now = w.now.Add(time.Second)
		if !w.rt.ExitByName("u1", arg(0), int32(code), reason) {
			return errors.New("no such container runs")
		}
	case "delete":
		grace, err := strconv.ParseInt(arg(0), 10, 64)
		if err != nil {
			return err
		}
		w.spec.Pod = w.spec.Pod.DeepCopy()
		at := metav1.NewTime(w.now.Add(time.Duration(grace) * time.Second))
		w.spec.Pod.DeletionTimestamp, w.spec.Pod.DeletionGracePeriodSeconds = &at, &grace
	case "gone":
		w.spec.Removed = true
	case "kill":
		w.spec.Kill = &Kill{Phase: v1.PodFailed, Reason: arg(0), Message: strings.Join(args[1:], " "),
			Condition: &v1.PodCondition{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: "TerminationByKubelet"}}
	case "hurry": // no time at all for what is being killed
		k := *w.spec.Kill
		k.Now = true
		w.spec.Kill = &k
	case "crash": // with containers that die before the agent is back
		for _, name := range args {
			if !w.rt.ExitByName("u1", name, 137, "Error") {
				return errors.New("no such container runs")
			}
		}
		w.crash()
	case "lose-sandbox":
		if !w.rt.LoseSandbox("u1") {
			return errors.New("there is no sandbox")
		}
	case "wipe":
		return w.rt.RemovePodSandbox(context.Background(), w.obs.Runtime.Sandboxes[0].ID)
	case "hold":
		w.hold[kind(arg(0))] = true
	case "release", "let": // let: those held so far, the next ones are held again
		if name == "release" {
			w.hold = map[kind]bool{}
		}
		for _, a := range w.held {
			w.log = append(w.log, "  "+a.String())
			w.do(a)
		}
		w.held = nil
	case "fail":
		what := strings.Join(args, " ")
		if body == "" {
			delete(w.errors, what)
			return nil
		}
		reason, msg, _ := strings.Cut(strings.TrimSpace(body), ": ")
		if msg == "" {
			w.errors[what] = errors.New(reason)
		} else {
			w.errors[what] = &Error{Reason: reason, Message: msg}
		}
	case "room":
		w.reject = nil
		w.obs.retryNow(w.now)
	case "reject":
		w.reject = &Rejection{Reason: arg(0), Message: strings.Join(args[1:], " ")}
	case "probe":
		p := Probe{}
		for _, a := range args[1:] {
			switch {
			case a == "started":
				p.Started = true
			case a == "ready":
				p.Started, p.Ready = true, true
			case strings.HasPrefix(a, "failed="):
				p.Started, p.Failed, p.Output = true, strings.TrimPrefix(a, "failed="), "it says no"
			}
		}
		w.probes[arg(0)] = p
	case "api-phase":
		w.api.Phase, w.api.Reason = v1.PodPhase(arg(0)), arg(1)
	case "condition":
		w.spec.Pod = w.spec.Pod.DeepCopy()
		w.spec.Pod.Status.Conditions = append(w.spec.Pod.Status.Conditions, v1.PodCondition{Type: v1.PodConditionType(arg(0)),
			Status: v1.ConditionStatus(arg(1))})
	default:
		return errors.New("no such command")
	}
	return nil
}
