// Package workloads asks the workload controllers for what their users expect, on real
// containers, also while hosts are lost.
package workloads
