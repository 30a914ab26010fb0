// Package journal keeps what berth decided and because of what.
//
// A core returns a decision together with its causes; the shell that performs
// it hands the same record to a Sink. Events, logs and `berth why` are made
// from that one record, so they cannot disagree.
package journal

import "time"

// Ref names the object a decision is about. Namespace is empty for
// cluster-scoped kinds; UID may be empty where it is not known.
type Ref struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
}

// Fact is one cause of a decision: a name and a value a reader can check,
// for example {"last heartbeat", "41.2s ago"}. Values never hold secrets.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Record is one decision. Time is when it was taken (wall clock, or virtual
// time in the simulator); Part is the berth part that took it ("agent",
// "health", "eviction", "proxy", "scheduler"); Decision is one short sentence
// in the past tense without the object's name ("marked Unknown").
type Record struct {
	Time     time.Time `json:"time"`
	Part     string    `json:"part"`
	Object   Ref       `json:"object"`
	Decision string    `json:"decision"`
	Because  []Fact    `json:"because,omitempty"`
	// Routine marks one of many alike that follow from other decisions, such
	// as rules that follow a Service: a story tells how many and the last.
	Routine bool `json:"routine,omitempty"`
}

// Sink takes records. Append must not block on disk or network and must be
// safe for concurrent use; a Sink that is over its bounds drops the oldest
// records, never the newest.
type Sink interface {
	Append(Record)
}

// Discard is a Sink that forgets everything.
var Discard Sink = discard{}

type discard struct{}

func (discard) Append(Record) {}
