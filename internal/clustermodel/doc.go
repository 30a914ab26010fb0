// Package clustermodel is a cluster in virtual time: a clock, hosts with their node
// agents' faults, leases, and the Node and Pod objects that the API holds of them.
//
// `berth simulate` (internal/sim) plays scenarios on it; the model-based tests of the
// node controllers' cores (internal/nodes/modeltest) and the fault-injection tests of
// their shells (internal/nodes/faulttest) try random histories. The fault-injection
// tests run real goroutines, whose virtual time is that of testing/synctest, and take
// hosts and objects from here alone.
//
// What a controller does is no part of the model: each user drives the production
// cores, and decides writes by health.Verdict's pure functions.
package clustermodel
