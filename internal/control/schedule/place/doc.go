// Package place decides where a pod goes: filters, scores and preemption as
// pure functions over an incremental Snapshot of nodes, pods and volumes.
//
// Nothing here knows a clock, a client or a goroutine, so the scheduler's
// shell, its tests and the simulator all run this very code. The order of the
// filters, the reasons they give and the meaning of every constraint follow
// the documented behaviour of the Kubernetes scheduler.
package place
