// Package node says to the cluster what this host is and how it fares: it
// registers the Node object, renews its Lease, and keeps its status true.
//
// The decisions (the first Node object, what to correct in an existing one,
// the status that follows from what was gathered, when to post it) are pure
// functions in identity.go, reconcile.go, capacity.go, conditions.go,
// status.go and cadence.go. The shells around them each own one goroutine, so
// that a runtime or disk that hangs delays no one but itself: above all the
// Lease keeps beating, and Ready says what hangs.
//
// Two differences from what other node agents do, both on purpose: a Node
// object that is deleted while the agent runs is registered again, and status
// is computed when something changed instead of every ten seconds.
package node
