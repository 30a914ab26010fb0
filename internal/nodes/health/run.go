package health

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/berth-dev/berth/internal/journal"
)

// Config is what the shell needs.
type Config struct {
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	Log       *slog.Logger
	Journal   journal.Sink
}

// Run keeps the NoSchedule taints of every node in step with its conditions
// until ctx ends.
func Run(ctx context.Context, cfg Config) error {
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](20*time.Millisecond, 30*time.Second),
		workqueue.TypedRateLimitingQueueConfig[string]{Name: "node-taints"})
	defer queue.ShutDown()
	nodes := cfg.Informers.Core().V1().Nodes()
	add := func(obj any) {
		if n, ok := obj.(*v1.Node); ok {
			if _, changed := NoSchedule(n, metav1.Time{}); changed {
				queue.Add(n.Name)
			}
		}
	}
	reg, err := nodes.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, obj any) { add(obj) }})
	if err != nil {
		return fmt.Errorf("watching nodes: %w", err)
	}
	defer nodes.Informer().RemoveEventHandler(reg) //nolint:errcheck // the informer may be gone
	cfg.Informers.Start(ctx.Done())
	stop := context.AfterFunc(ctx, queue.ShutDown)
	defer stop()
	for {
		name, shutdown := queue.Get()
		if shutdown {
			return ctx.Err()
		}
		err := sync(ctx, cfg, name)
		if err != nil && ctx.Err() == nil {
			cfg.Log.Warn("tainting by condition", "node", name, "error", err)
			queue.AddRateLimited(name)
		} else {
			queue.Forget(name)
		}
		queue.Done(name)
	}
}

func sync(ctx context.Context, cfg Config, name string) error {
	n, err := cfg.Informers.Core().V1().Nodes().Lister().Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	taints, changed := NoSchedule(n, metav1.Now())
	if !changed {
		return nil
	}
	// The version makes this a compare-and-swap: a taint that somebody else
	// adds at the same moment is never overwritten.
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": n.UID, "resourceVersion": n.ResourceVersion},
		"spec":     map[string]any{"taints": taints},
	})
	if err != nil {
		return err
	}
	if _, err := cfg.Client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: "berth-node-health"}); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("patching taints of Node %s: %w", name, err)
	}
	record := journal.Record{Time: time.Now(), Part: "health", Object: journal.Ref{Kind: "Node", Name: name, UID: string(n.UID)}, Decision: "set NoSchedule taints to match its conditions"}
	for _, c := range n.Status.Conditions {
		record.Because = append(record.Because, journal.Fact{Name: string(c.Type), Value: fmt.Sprintf("%s (%s)", c.Status, c.Reason)})
	}
	cfg.Journal.Append(record)
	return nil
}
