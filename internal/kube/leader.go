// Package kube is the client plumbing that controllers share: leader election,
// indexes on shared caches, event recorders and metrics that outlive a restart.
package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
)

// ErrLost says that somebody else may be leading now.
var ErrLost = errors.New("leadership was lost")

// Election is a race for a Lease. Identity must differ between processes.
// LeaseDuration > RenewDeadline > RetryPeriod * 1.2.
type Election struct {
	Client                                    kubernetes.Interface
	Namespace, Name, Identity                 string
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	Log                                       *slog.Logger
	Events                                    record.EventRecorder // may be nil
	// Watchdog, if given, becomes unhealthy when the lease could not be renewed
	// and leading did not end.
	Watchdog *leaderelection.HealthzAdaptor
}

// Lead waits for leadership, calls run, and returns what run returned, or
// ErrLost when leadership ended first. run's context ends with leadership. The
// lease is given back only after run has returned, so two runs never overlap.
func Lead(ctx context.Context, e Election, run func(context.Context) error) error {
	cfg := resourcelock.ResourceLockConfig{Identity: e.Identity}
	if e.Events != nil {
		cfg.EventRecorder = e.Events
	}
	lock := &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name}, Client: e.Client.CoordinationV1(), LockConfig: cfg,
	}
	// The election outlives ctx by the time run needs to end.
	racing, resign := context.WithCancel(context.WithoutCancel(ctx))
	defer resign()
	var mu sync.Mutex
	var leading bool
	var result error
	stop := context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		if !leading {
			resign()
		}
	})
	defer stop()
	ended := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: e.Name, LeaseDuration: e.LeaseDuration, RenewDeadline: e.RenewDeadline, RetryPeriod: e.RetryPeriod,
		ReleaseOnCancel: true, WatchDog: e.Watchdog,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(lease context.Context) {
				defer close(ended)
				defer resign()
				mu.Lock()
				leading = true
				mu.Unlock()
				e.Log.Info("leading", "lease", e.Namespace+"/"+e.Name, "identity", e.Identity)
				running, cancel := context.WithCancel(lease)
				defer cancel()
				defer context.AfterFunc(ctx, cancel)()
				result = run(running)
			},
			OnStoppedLeading: func() {},
			OnNewLeader: func(id string) {
				if id != e.Identity {
					e.Log.Info("another leads", "lease", e.Namespace+"/"+e.Name, "leader", id)
				}
			},
		},
	})
	if err != nil {
		return fmt.Errorf("leader election for lease %s/%s: %w", e.Namespace, e.Name, err)
	}
	elector.Run(racing)
	lost := racing.Err() == nil
	resign()
	mu.Lock()
	led := leading
	mu.Unlock()
	switch {
	case led:
		<-ended
		if lost {
			return fmt.Errorf("lease %s/%s: %w", e.Namespace, e.Name, ErrLost)
		}
		return result
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return fmt.Errorf("lease %s/%s: %w", e.Namespace, e.Name, ErrLost)
}
