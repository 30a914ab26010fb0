package defaults

import (
	flow "k8s.io/api/flowcontrol/v1"
)

// What a FlowSchema and a limited priority level get when they do not say:
// precedence in 1..10000, shares of the server's concurrency, and the shape of
// the shuffle-sharded queues.
const (
	schemaPrecedence  int32 = 1000
	concurrencyShares int32 = 30
	handSize          int32 = 8
	queues            int32 = 64
	queueLength       int32 = 50
)

func PriorityLevelConfiguration(p *flow.PriorityLevelConfiguration) {
	if e := p.Spec.Exempt; e != nil {
		fill(&e.NominalConcurrencyShares, 0)
		fill(&e.LendablePercent, 0)
	}
	l := p.Spec.Limited
	if l == nil {
		return
	}
	fill(&l.NominalConcurrencyShares, concurrencyShares)
	fill(&l.LendablePercent, 0)
	if q := l.LimitResponse.Queuing; q != nil {
		zero(&q.HandSize, handSize)
		zero(&q.Queues, queues)
		zero(&q.QueueLengthLimit, queueLength)
	}
}

func FlowSchema(f *flow.FlowSchema) { zero(&f.Spec.MatchingPrecedence, schemaPrecedence) }
