package hpa

import (
	"slices"
	"time"
)

// history is what an autoscaler remembers from round to round. It is lost with
// the process, and that is safe: the first recommendation after a start is the
// number of replicas there are.
type history struct {
	Recommendations []recommendation
	// Changes are the changes of the target's size that this process made.
	Changes []change
}

// recommendation is a count that a round arrived at before it was stabilised.
type recommendation struct {
	Replicas int32
	At       time.Time
}

// change is how many replicas were added (or, below zero, taken).
type change struct {
	By int32
	At time.Time
}

// keepHistory is the longest window that the API allows.
const keepHistory = time.Hour

func (h history) clone() history {
	return history{Recommendations: slices.Clone(h.Recommendations), Changes: slices.Clone(h.Changes)}
}

// begin makes the replicas that are there the first recommendation.
func (h *history) begin(replicas int32, now time.Time) {
	if len(h.Recommendations) == 0 {
		h.Recommendations = []recommendation{{replicas, now}}
	}
}

func (h *history) recommend(replicas int32, now time.Time) {
	h.Recommendations = slices.DeleteFunc(h.Recommendations, func(r recommendation) bool { return now.Sub(r.At) > keepHistory })
	h.Recommendations = append(h.Recommendations, recommendation{replicas, now})
}

func (h *history) scaled(by int32, now time.Time) {
	h.Changes = slices.DeleteFunc(h.Changes, func(c change) bool { return now.Sub(c.At) > keepHistory })
	h.Changes = append(h.Changes, change{by, now})
}

// changed is how many replicas were added and taken within a period.
func (h history) changed(period time.Duration, now time.Time) (added, taken int32) {
	for _, c := range h.Changes {
		switch {
		case now.Sub(c.At) >= period:
		case c.By > 0:
			added += c.By
		default:
			taken -= c.By
		}
	}
	return added, taken
}
