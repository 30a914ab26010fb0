// Package ttl tells node agents, by an annotation, for how long they may keep
// secrets and config maps: the more nodes, the longer.
package ttl

// Annotation carries the time to live in seconds.
const Annotation = "node.alpha.kubernetes.io/ttl"

// steps are upstream's. Up is left above most nodes, down is entered again
// below least: between the two nothing changes, so a count that swings around
// a boundary does not rewrite every node.
var steps = []struct {
	least, most int // nodes
	seconds     int
}{
	{0, 100, 0},
	{90, 500, 15},
	{450, 1000, 30},
	{900, 2000, 60},
	{1800, int(^uint(0) >> 1), 300},
}

// step is a place in the table of times to live; the zero value is where a
// cluster starts.
type step int

// Next is the step for a number of nodes, coming from s.
func (s step) Next(nodes int) step {
	for nodes > steps[s].most {
		s++
	}
	for nodes < steps[s].least {
		s--
	}
	return s
}

// Seconds is the time to live of the step.
func (s step) Seconds() int { return steps[s].seconds }
