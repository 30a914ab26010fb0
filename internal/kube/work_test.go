package kube

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Work ends with its context however soon that ends, and does again what failed.
func TestWork(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for range 200 { // the end may come before, while and after the workers start
		ctx, cancel := context.WithCancel(context.Background())
		queue := NewQueue[string]("test", time.Millisecond, time.Second)
		tries := make(chan struct{}, 3)
		queue.Add("a")
		go func() {
			<-tries
			<-tries
			cancel()
		}()
		Work(ctx, queue, 3, slog.New(slog.DiscardHandler), "trying", func(context.Context, string) error {
			select {
			case tries <- struct{}{}:
			default:
			}
			return errors.New("again")
		})
	}
}
