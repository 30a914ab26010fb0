package sim

import "time"

// writeKind is what an API write is about.
type writeKind uint8

const (
	writeLease writeKind = iota
	writeNodeStatus
	writeNodeTaints
	writePodStatus
	writePodCreate
	writePodDelete
	writeBinding
	writeEvent
	writeKinds
)

var writeNames = [writeKinds]string{"leases", "node status", "node taints", "pod status", "pod creations", "pod deletions", "bindings",
	"events"}

// server is the API server: a latency, an on/off switch and a count of writes.
type server struct {
	w     *simulation
	down  int
	extra time.Duration
	// writes counts by kind and second of virtual time.
	writes [writeKinds][]uint32
	total  [writeKinds]int
}

func (s *server) latency() time.Duration { return s.w.sc.Cluster.APILatency.D() + s.extra }

func (s *server) count(k writeKind) {
	second := int(s.w.Now / time.Second)
	list := s.writes[k]
	for len(list) <= second {
		list = append(list, 0)
	}
	list[second]++
	s.writes[k] = list
	s.total[k]++
}

// do makes one write: commit runs when it is stored. While the API is down the
// writer tries again, backing off up to ten seconds.
func (s *server) do(k writeKind, commit func()) { s.attempt(k, commit, time.Second) }

func (s *server) attempt(k writeKind, commit func(), pause time.Duration) {
	s.w.After(s.latency(), func() {
		if s.down > 0 {
			s.w.After(s.w.vary(pause, 0.2), func() { s.attempt(k, commit, min(2*pause, 10*time.Second)) })
			return
		}
		s.count(k)
		commit()
	})
}

// tell lets the controllers hear of a change, unless they are away or their
// watch is stale: then they hear of it when they list again.
func (w *simulation) notify(hear func()) {
	w.After(w.sc.Cluster.WatchLatency.D(), func() {
		if w.hearing() {
			hear()
		}
	})
}

func (w *simulation) hearing() bool { return w.down == 0 && w.stalled == 0 }

// pool is a number of workers with a queue. A job calls done when it is over.
type pool struct {
	size, busy int
	life       uint64 // a restart ends what runs
	queue      []func(done func())
}

func (p *pool) add(job func(done func())) {
	p.queue = append(p.queue, job)
	p.next()
}

func (p *pool) next() {
	for p.busy < p.size && len(p.queue) > 0 {
		job := p.queue[0]
		p.queue[0] = nil
		p.queue = p.queue[1:]
		p.busy++
		life, over := p.life, false
		job(func() {
			if p.life != life || over {
				return
			}
			over = true
			p.busy--
			p.next()
		})
	}
}

func (p *pool) reset() {
	p.life++
	p.busy, p.queue = 0, nil
}
