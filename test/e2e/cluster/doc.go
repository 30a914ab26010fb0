// Package cluster follows a cluster's life: start, status, stop, several side
// by side, and what goes wrong there.
package cluster
