package sim

import (
	"slices"
	"time"
)

// summary is a run in numbers.
type summary struct {
	Nodes int `json:"nodes"`
	Pods  int `json:"pods"`
	delays
	// Unrecovered are pods still missing at the end.
	Unrecovered int `json:"unrecovered"`
	// FalseUnknown are nodes marked Unknown that were alive and could talk.
	FalseUnknown int `json:"falseUnknown"`
	// Evictions are pods deleted for taints; Needless of these ran well.
	Evictions int `json:"evictions"`
	Needless  int `json:"needlessEvictions"`
	Drained   int `json:"drained"`
	Collected int `json:"collected"`
	// LostPodTime adds up how long pods were missing, DeadPodTime how long
	// the API called pods ready that did not run: requests sent nowhere.
	LostPodTime duration       `json:"lostPodTime"`
	DeadPodTime duration       `json:"deadPodTime"`
	Writes      map[string]int `json:"writes"`
	// PeakWrites is the most API writes in one second, which began PeakAt;
	// SteadyWrites the mean of all seconds.
	PeakWrites   int        `json:"peakWrites"`
	PeakAt       duration   `json:"peakAt"`
	SteadyWrites float64    `json:"meanWritesPerSecond"`
	EndNodes     nodeCounts `json:"endNodes"`
	EndPods      podCounts  `json:"endPods"`
	// Pending says of the workloads that have pods without a node why.
	Pending map[string]string `json:"pending,omitempty"`
}

// delays are how long things took. In JSON they stand among the summary's own.
type delays struct {
	// Detection is from a node's silence to its Unknown conditions, Tainting
	// to its NoExecute taint, NodeRecovery from when it could talk again to
	// Ready and free of taints.
	Detection    spreadRule `json:"detection"`
	Tainting     spreadRule `json:"tainting"`
	NodeRecovery spreadRule `json:"nodeRecovery"`
	// PodRecovery is from when a pod stops to serve until one of its workload
	// serves in its place.
	PodRecovery spreadRule `json:"podRecovery"`
}

// spreadRule is how a number of durations is distributed.
type spreadRule struct {
	Count int      `json:"count"`
	P50   duration `json:"p50"`
	P99   duration `json:"p99"`
	Max   duration `json:"max"`
}

func spread(list []time.Duration) spreadRule {
	if len(list) == 0 {
		return spreadRule{}
	}
	list = slices.Clone(list)
	slices.Sort(list)
	at := func(share float64) duration {
		return duration(list[min(len(list)-1, int(share*float64(len(list))))].Round(time.Millisecond))
	}
	return spreadRule{Count: len(list), P50: at(0.5), P99: at(0.99), Max: at(1)}
}

func (w *simulation) summary(nodes, pods int) summary {
	r := &w.notes
	s := summary{Nodes: nodes, Pods: pods,
		delays: delays{Detection: spread(r.detected), Tainting: spread(r.tainted), NodeRecovery: spread(r.nodeBack),
			PodRecovery: spread(r.podBack)},
		Unrecovered: r.lost, FalseUnknown: r.falseUnknown, Evictions: r.evictions, Needless: r.needless, Drained: r.drained,
		Collected:   r.gced,
		LostPodTime: duration(r.lostFor.Round(time.Second)), DeadPodTime: duration(r.deadFor.Round(time.Second)),
		Writes: map[string]int{}, EndNodes: r.nodeCounts(), EndPods: r.podCounts()}
	seconds := int(w.sc.Duration.D() / time.Second)
	sum := 0
	for second := range seconds {
		n := 0
		for _, list := range w.api.writes {
			if second < len(list) {
				n += int(list[second])
			}
		}
		sum += n
		if n > s.PeakWrites {
			s.PeakWrites, s.PeakAt = n, duration(time.Duration(second)*time.Second)
		}
	}
	if seconds > 0 {
		s.SteadyWrites = float64(sum) / float64(seconds)
	}
	for k, total := range w.api.total {
		if total > 0 {
			s.Writes[writeNames[k]] = total
		}
	}
	for _, c := range w.scheduler.classes {
		for _, p := range c.pods {
			if !p.gone && p.node == nil && c.why != "" {
				if s.Pending == nil {
					s.Pending = map[string]string{}
				}
				s.Pending[p.set.spec.Name] = c.why
				break
			}
		}
	}
	return s
}
