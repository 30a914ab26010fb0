package sim

import (
	"time"

	"github.com/berth-dev/berth/internal/clustermodel"
	"github.com/berth-dev/berth/internal/nodes/podgc"
)

// podGC is the shell of internal/nodes/podgc in virtual time. Finished pods
// over a limit are not its concern here: Jobs of a scenario are few.
type podGC struct {
	w       *simulation
	missing map[*node]time.Duration // by when they were first seen gone
}

func (g *podGC) nodeGone(n *node) {
	if _, known := g.missing[n]; !known {
		g.missing[n] = g.w.Now
	}
	g.seeNode(n)
}

func (g *podGC) seeNode(n *node) {
	for _, p := range n.pods {
		g.look(p)
	}
}

func (g *podGC) judge(p *pod) (podgc.Reason, time.Time) {
	if p.gone || p.node == nil {
		return podgc.None, time.Time{}
	}
	if since, gone := g.missing[p.node]; gone {
		return podgc.Evaluate(&p.obj, podgc.Node{Missing: clustermodel.Epoch.Add(since)})
	}
	return podgc.Evaluate(&p.obj, podgc.NodeOf(p.node.obj))
}

// look plans a pod's removal if it has to go.
func (g *podGC) look(p *pod) {
	why, from := g.judge(p)
	if why == podgc.None {
		return
	}
	g.w.At(from.Sub(clustermodel.Epoch), func() {
		if why, from := g.judge(p); why == podgc.None || from.After(g.w.Time()) || g.w.down > 0 {
			return
		}
		g.w.api.do(writePodStatus, func() {
			g.w.api.do(writePodDelete, func() {
				g.w.notes.collected(g.w, p)
				g.w.removePod(p)
			})
		})
	})
}
