package health

import (
	"fmt"
	"strconv"
	"time"

	"github.com/berth-dev/berth/internal/journal"
)

// Kind says what a Decision is about.
type Kind uint8

// What a Monitor decides. All but Confirm concern one node or zone and are
// carried out by making the node fit its Verdict; Confirm asks the shell to
// list all leases afresh from the API, to Observe what it finds, and then to
// Observe Confirmed.
const (
	MarkUnknown Kind = iota // its conditions become Unknown
	HeardAgain              // it was silent and is not any more
	Taint                   // it gets the NoExecute taint Key
	Untaint                 // it loses ours
	MarkPods                // its pods become not ready
	Wait                    // it waits for its zone's next token
	ZoneChanged             // a zone's disruption changed
	Suspend                 // all zones are disrupted: NoExecute taints go
	Resume                  // some zone has a ready node again
	Hold                    // nothing can be known: no verdict until it can
	Release                 // the API answers again
	Confirm                 // look at the leases yourself before nodes are marked
	StaleWatch              // the leases were renewed, but their watch did not say so
)

var sentences = [...]string{
	MarkUnknown: "marked Unknown", HeardAgain: "heard again", Taint: "tainted NoExecute", Untaint: "freed from its NoExecute taint",
	MarkPods: "its pods marked not ready", Wait: "waits for a NoExecute token", ZoneChanged: "zone changed",
	Suspend: "all zones are disrupted: suspended NoExecute taints", Resume: "resumed NoExecute taints, every node got a fresh grace period",
	Hold: "held fire: the silence may be ours", Release: "ended holding fire: the API answers again",
	Confirm:    "asked the API before marking nodes",
	StaleWatch: "found the lease watch stale: nodes that it did not report are alive",
}

// Decision is one change of mind, with its causes.
type Decision struct {
	Kind Kind
	Node string // "" for those about a zone or all
	UID  string
	Key  string // taint key of Taint
	// AtStart: a suspension that was found so, or its end: no change to record.
	AtStart bool
	Cause   Cause
}

// Cause holds the numbers a decision was taken by; only those that matter for
// its kind are set.
type Cause struct {
	Ready    Status
	Heard    time.Time // local time of the last sign of life
	By       string    // what that sign was
	Silent   time.Duration
	Grace    time.Duration
	Unheard  time.Duration // how long the API did not answer, which is no silence of the node's
	Zone     *ZoneView     // never nil; shared between decisions, so read only
	Position int           // in the zone's queue, for Wait
	Expired  int           // nodes past their deadline, for Confirm and Hold; found alive, for StaleWatch
	Quiet    string        // how long no one at all was heard
	Error    string
	Why      string
}

// Text is the decision as a sentence without its subject.
func (d Decision) Text() string {
	switch d.Kind {
	case Confirm:
		if d.Cause.Expired == 0 {
			return "asked the API whether it answers"
		}
	case Taint:
		return "tainted " + d.Key + ":NoExecute"
	case ZoneChanged:
		return "zone " + strconv.Quote(d.Cause.Zone.Name) + " is now in " + d.Cause.Zone.State.String()
	}
	return sentences[d.Kind]
}

// Because lists the causes for the journal. It is made on demand: a mass
// expiry decides a hundred thousand times and few of them are read.
func (d Decision) Because() []journal.Fact {
	var out []journal.Fact
	add := func(name, format string, args ...any) {
		out = append(out, journal.Fact{Name: name, Value: fmt.Sprintf(format, args...)})
	}
	c := d.Cause
	if c.Why != "" {
		add("why", "%s", c.Why)
	}
	switch d.Kind {
	case MarkUnknown, HeardAgain:
		add("last heard", "%s ago (%s)", c.Silent.Round(time.Millisecond), c.By)
		add("grace period", "%s", c.Grace)
		if c.Unheard > 0 {
			add("not counted", "%s in which the API did not answer", c.Unheard.Round(time.Millisecond))
		}
	case Taint, Untaint, Wait, MarkPods:
		add("ready", "%s", c.Ready)
	}
	switch d.Kind {
	case Taint, Untaint, Wait, ZoneChanged, MarkUnknown:
		z := c.Zone
		add("zone", "%q %s, %d ready, %d not", z.Name, z.State, z.Ready, z.NotReady)
		add("rate", "%g nodes/s, %.2f tokens left, %d waiting", z.Rate, z.Tokens, z.Waiting)
	}
	if d.Kind == Wait {
		add("position", "%d", c.Position)
	}
	if d.Kind == Confirm || d.Kind == Hold {
		add("nodes past their deadline", "%d", c.Expired)
		add("last sign of life from anyone", "%s ago", c.Quiet)
	}
	if d.Kind == Release {
		add("it did not answer for", "%s, which count as no silence", c.Unheard.Round(time.Millisecond))
		add("nodes not heard since", "may not be marked before half of their lease's duration is over")
	}
	if d.Kind == StaleWatch {
		add("nodes found alive", "%d", c.Expired)
	}
	if c.Error != "" {
		add("error", "%s", c.Error)
	}
	return out
}
