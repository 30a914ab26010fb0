// Package e2e starts clusters of its own, with the real runtime, kernel and
// kubectl, and uses them as a user would.
package e2e
