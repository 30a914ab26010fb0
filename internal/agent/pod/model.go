// Package pod runs one pod: Plan decides from plain data what has to happen
// next and what the pod's status is; a worker per pod performs it.
//
// Plan is pure. It holds no clock, client, goroutine or lock: the same inputs
// give the same plan in production, in tests and in a simulation. Actions in
// flight are part of its input, so it never waits and never asks for the same
// thing twice. What the worker learns goes back in through Memory.Done.
package pod

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/agent/runtime"
	"github.com/berth-dev/berth/internal/journal"
)

// spec is what the world asks of one pod.
type spec struct {
	// Pod is the newest definition. For an orphan it is a skeleton that carries
	// only name, namespace and UID.
	Pod *v1.Pod
	// Desired is the pod as its owner wants it now, where Pod is what the node
	// promised; they differ in resources only. Nil where there is no difference
	// to be had.
	Desired *v1.Pod
	// Static pods come from a file or URL; the API holds only a mirror of them.
	Static bool
	// Removed: no source has the pod any more.
	Removed bool
	// Orphan: only the runtime or the disk knew the pod when the agent started.
	Orphan bool
	// Kill, when set, ends the pod for a reason of the node. It stays set.
	Kill *Kill
}

// Kill ends a pod for a reason of the node: eviction, preemption, shutdown.
type Kill struct {
	// Grace in seconds; nil means the pod's own. It can only shorten.
	Grace *int64
	// Now leaves containers no time at all, not even the least that every
	// other stop gives them.
	Now bool
	// Phase the pod ends in; empty means as its containers exited.
	Phase           v1.PodPhase
	Reason, Message string
	// Condition is added to the status together with the terminal phase.
	Condition *v1.PodCondition
}

// Disrupted is the condition of a pod that the node ends though it did no wrong.
func Disrupted(message string) *v1.PodCondition {
	return &v1.PodCondition{
		Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet, Message: message,
		LastTransitionTime: metav1.Now(),
	}
}

// kind is what an action does.
type kind string

// The kinds of actions. The comment says what Action fields it uses.
const (
	Admit         kind = "admit"          // decide whether the node takes the pod
	Cgroup        kind = "cgroup"         // make the pod's cgroup
	Mount         kind = "mount"          // mount all volumes
	CreateSandbox kind = "create-sandbox" // Attempt
	Pull          kind = "pull"           // Container: make its image present
	Start         kind = "start"          // Container, Attempt: create and start
	PostStart     kind = "post-start"     // Container, ID
	PreStop       kind = "pre-stop"       // Container, ID, Deadline
	Stop          kind = "stop"           // Container, ID, Deadline
	Allocate      kind = "allocate"       // find room for changed resources
	Resize        kind = "resize"         // apply the allocated resources to what runs
	Remove        kind = "remove"         // Container, ID: remove an ended container
	StopSandbox   kind = "stop-sandbox"   // ID
	RemoveSandbox kind = "remove-sandbox" // ID
	Unmount       kind = "unmount"        // unmount all volumes
	RemoveCgroup  kind = "remove-cgroup"
	Clean         kind = "clean"  // remove the pod's directories and logs
	Delete        kind = "delete" // delete the Pod object from the API
)

// actionKey identifies an action: at most one with the same key is in flight.
type actionKey struct {
	Kind kind
	// Name is the container's name for a start, with the image for a pull, the
	// runtime ID for what concerns one container or sandbox, else empty.
	Name string
}

// action is one thing to do. Kind says which fields matter.
type action struct {
	Kind      kind
	Container string
	ID        string
	Attempt   uint32
	// Deadline is when the grace of a stop or hook is over. An action in flight
	// whose deadline moves nearer, or that has no time any more, is given out
	// again and replaces the first.
	Deadline time.Time
	// Now makes a stop kill at once.
	Now bool
	// backoff is the back-off entry that performing a start creates.
	Backoff *backoff
	// KeepLogs makes a removal leave the container's logs.
	KeepLogs bool
	// event to report when the action begins, if any.
	Event   *event
	Because []journal.Fact

	image string // name that a pull asks for, reference that a start runs
}

// actionKey returns the action's identity.
func (a action) Key() actionKey {
	switch a.Kind {
	case Pull:
		return pullKey(a.Container, a.image)
	case Start:
		return actionKey{a.Kind, a.Container}
	case PostStart, PreStop, Stop, Remove, StopSandbox, RemoveSandbox:
		return actionKey{a.Kind, a.ID}
	}
	return actionKey{Kind: a.Kind}
}

// pullKey: what is known of a pull is known of one image, a container may be
// given another.
func pullKey(container, image string) actionKey { return actionKey{Pull, container + " " + image} }

// String is the action as transcripts and the journal print it.
func (a action) String() string {
	s := string(a.Kind)
	if a.Container != "" {
		s += " " + a.Container
	}
	switch a.Kind {
	case Start, CreateSandbox:
		s += fmt.Sprintf(" attempt=%d", a.Attempt)
	}
	if a.ID != "" {
		s += " id=" + a.ID
	}
	return s
}

// event is a Kubernetes event about the pod or, with Container set, about one
// of its containers. Key, when set, makes it fire once per distinct key.
type event struct {
	Warning         bool
	Reason, Message string
	Container       string
	Key             string
}

// actionFailure is why an action last failed, in the words the status shows.
type actionFailure struct {
	Reason, Message string
	Count           int
	At, RetryAt     time.Time
}

// Rejection is the node's refusal of a pod.
type Rejection struct{ Reason, Message string }

// Probe is what the prober knows of one running container.
type Probe struct {
	// Started: there is no startup probe or it has passed.
	Started bool
	// Ready: there is no readiness probe or it passes.
	Ready bool
	// Failed names the probe ("liveness", "startup") that asks for the
	// container's end; empty while all is well.
	Failed string
	// Output of the failed probe.
	Output string
}

// Node is what a pod's status needs to know about its node.
type Node struct {
	// IPs of the node, primary family first.
	IPs []string
	// CrashLimit caps the crash-loop back-off; zero means five minutes.
	CrashLimit time.Duration
	// NotReady says that the API calls the node not ready.
	NotReady bool
}

// observed is everything known about one pod besides its Spec.
type observed struct {
	memory
	// Runtime is what the runtime holds; nil when nothing.
	Runtime *runtime.Pod
	// RuntimeName prefixes container IDs ("containerd").
	RuntimeName string
	// Probes by container ID. A container without an entry has no probes, or
	// none that has run yet: see Plan for which.
	Probes map[string]Probe
	Node   Node
	// Devices is the health of what containers were given, by name.
	Devices map[string][]v1.ResourceStatus
	// Messages are termination messages by ID of an exited container.
	Messages map[string]string
}

// plan is what to do next and what the pod's status is now.
type plan struct {
	Actions []action
	// Cancel names actions in flight whose result is no longer wanted.
	Cancel []actionKey
	Status v1.PodStatus
	// Events to report that belong to no action.
	Events []event
	// Because is the chain of facts behind the pod's present situation.
	Because []journal.Fact
	// WakeAt is when the plan changes if nothing else happens; zero: never.
	WakeAt time.Time
	// Terminating: the pod is on its way out and never comes back.
	Terminating bool
	// Ended: it terminates and nothing of it runs.
	Ended bool
	// Grace is the grace in seconds that termination uses.
	Grace int64
	// Done: nothing is left on the node that belongs to the pod, and no source
	// has it: the worker ends.
	Done bool
}

// verbs name the actions as the journal tells them.
var verbs = map[kind]string{
	Admit: "asking for admission", Cgroup: "making the cgroup", Mount: "mounting volumes", CreateSandbox: "creating the sandbox",
	Pull: "fetching the image of", Start: "starting", PostStart: "running the post-start hook of", PreStop: "running the pre-stop hook of",
	Stop: "stopping", Allocate: "asking for changed resources", Resize: "applying changed resources", Remove: "removing",
	StopSandbox: "stopping the sandbox", RemoveSandbox: "removing the sandbox", Unmount: "unmounting volumes",
	RemoveCgroup: "removing the cgroup", Clean: "removing its directories", Delete: "deleting it from the API",
}

// sentence is the action as the journal tells it.
func (a action) sentence() string {
	switch {
	case a.Kind == Start && a.Attempt > 0:
		return fmt.Sprintf("restarting container %s (restart %d)", a.Container, a.Attempt)
	case a.Container != "":
		return verbs[a.Kind] + " container " + a.Container
	}
	return verbs[a.Kind]
}
