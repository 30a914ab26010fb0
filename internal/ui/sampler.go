package ui

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	metrics "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/berth-dev/berth/internal/ui/view"
)

const (
	// sampleEvery is how often the metrics API has new numbers.
	sampleEvery = 15 * time.Second
	// sampleTimeout bounds one question: the first waits for two samples.
	sampleTimeout = 10 * time.Second
)

// sampler holds what nodes and pods use. It asks the metrics API while a page
// that shows usage is open, and at no other time.
type sampler struct {
	loopback *rest.Config
	changed  func()

	mu          sync.Mutex
	nodes, pods map[string]view.Usage
	asked       time.Time
	asking      bool
}

func newSampler(loopback *rest.Config, changed func()) *sampler {
	return &sampler{loopback: loopback, changed: changed}
}

// want asks for a new sample, unless there is a recent one. It does not wait:
// changed is called when the sample is there.
func (s *sampler) want(usage bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !usage || s.loopback == nil || s.asking || time.Since(s.asked) < sampleEvery-time.Second {
		return
	}
	s.asking = true
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), sampleTimeout)
		defer cancel()
		nodes, pods := sample(ctx, s.loopback)
		s.mu.Lock()
		s.nodes, s.pods, s.asked, s.asking = nodes, pods, time.Now(), false
		s.mu.Unlock()
		s.changed()
	}()
}

// current is the last sample; nil maps where there is none, or an old one.
func (s *sampler) current() (nodes, pods map[string]view.Usage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.asked) > 4*sampleEvery {
		return nil, nil
	}
	return s.nodes, s.pods
}

// sample reads the metrics API. What it does not answer is left out.
func sample(ctx context.Context, cfg *rest.Config) (nodes, pods map[string]view.Usage) {
	const base = "/apis/metrics.k8s.io/v1beta1/"
	var n metrics.NodeMetricsList
	if raw, err := get(ctx, cfg, base+"nodes", nil); err == nil && json.Unmarshal(raw, &n) == nil {
		nodes = make(map[string]view.Usage, len(n.Items))
		for i := range n.Items {
			u := n.Items[i].Usage
			nodes[n.Items[i].Name] = view.Usage{CPU: u.Cpu().MilliValue(), Memory: u.Memory().Value()}
		}
	}
	var p metrics.PodMetricsList
	if raw, err := get(ctx, cfg, base+"pods", nil); err == nil && json.Unmarshal(raw, &p) == nil {
		pods = make(map[string]view.Usage, len(p.Items))
		for i := range p.Items {
			var u view.Usage
			for _, c := range p.Items[i].Containers {
				u.CPU += c.Usage.Cpu().MilliValue()
				u.Memory += c.Usage.Memory().Value()
			}
			pods[p.Items[i].Namespace+"/"+p.Items[i].Name] = u
		}
	}
	return nodes, pods
}
