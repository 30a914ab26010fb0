package node

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// watch follows its own Node object and nothing else.
type watch struct {
	informer cache.SharedIndexInformer
	seen     *seen
}

func newWatch(cfg Config, seen *seen) *watch {
	onlyOwn := func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, cfg.Settings.Identity.Name).String()
	}
	informer := coreinformers.NewFilteredNodeInformer(cfg.Client, 0, cache.Indexers{}, onlyOwn)
	return &watch{informer: informer, seen: seen}
}

func (w *watch) run(ctx context.Context) {
	_, err := w.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { w.seen.learn(obj.(*v1.Node)) },
		UpdateFunc: func(_, obj any) { w.seen.learn(obj.(*v1.Node)) },
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			if node, ok := obj.(*v1.Node); ok {
				w.seen.forget(node.UID)
			}
		},
	})
	if err != nil {
		return // only for an informer that was stopped before it ran
	}
	w.informer.RunWithContext(ctx)
}

// cidrPusher hands the node's pod CIDRs to runtimes that configure the pod
// network themselves.
type cidrPusher struct {
	log     *slog.Logger
	runtime Runtime
	seen    *seen
}

func newCIDRPusher(cfg Config, seen *seen) *cidrPusher {
	return &cidrPusher{log: cfg.Log, runtime: cfg.Runtime, seen: seen}
}

func (p *cidrPusher) run(ctx context.Context) {
	pushed, failures := "", 0
	for ctx.Err() == nil {
		cidr := ""
		if node := p.seen.get(); node != nil {
			cidr = strings.Join(node.Spec.PodCIDRs, ",")
		}
		if cidr == "" || cidr == pushed {
			waitFor(ctx, time.Hour, p.seen.cidrCh)
			continue
		}
		asking, cancel := context.WithTimeout(ctx, probeTimeout)
		err := p.push(asking, cidr)
		cancel()
		if err == nil {
			pushed, failures = cidr, 0
			continue
		}
		if failures == 0 {
			p.log.Warn("handing the pod CIDR to the runtime", "err", err)
		}
		waitFor(ctx, backoff(failures, rand.Float64()), nil)
		failures++
	}
}

func (p *cidrPusher) push(ctx context.Context, cidr string) error {
	err := p.runtime.UpdateRuntimeConfig(ctx, &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: cidr}})
	if err != nil {
		return fmt.Errorf("setting pod CIDR %s: %w", cidr, err)
	}
	return nil
}
