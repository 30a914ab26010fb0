// Package sim answers "what would happen if" questions about a cluster: it runs
// the controllers' own decision cores in virtual time over a modelled cluster.
//
// Real are the node health Monitor, the taint eviction rule, the scheduler's
// placement, and the plans of ReplicaSets, StatefulSets, Jobs and DaemonSets:
// the very code that `berth up` runs. Modelled are hosts, networks, the API
// server (a latency and an on/off switch) and what agents do with pods. One
// event heap orders everything; the same scenario and seed give the same run
// to the last byte.
package sim
