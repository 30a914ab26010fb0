package cluster

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/control/store"
)

// storeMetrics tells how much of its room the embedded store takes.
func (u *up) storeMetrics(registry prometheus.Registerer) {
	if u.store == nil || !u.store.Embedded() {
		return
	}
	for _, g := range []struct {
		name, help string
		value      func(store.Usage) int64
	}{
		{"berth_store_size_bytes", "Size of the embedded store's file.", func(u store.Usage) int64 { return u.Size }},
		{"berth_store_in_use_bytes", "Bytes of the embedded store's file that hold something.",
			func(u store.Usage) int64 { return u.InUse }},
		{"berth_store_quota_bytes", "Size the embedded store may have; at 90 % of it no new objects are taken.",
			func(u store.Usage) int64 { return u.Quota }},
	} {
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: g.name, Help: g.help},
			func() float64 { return float64(g.value(u.store.Usage())) }))
	}
}

// tellSpace makes an event when the store gets short of room, while there is
// room for one, and when it no longer is.
func (u *up) tellSpace(usage store.Usage) {
	if !u.isReady() {
		return // there may be no client yet: `berth status` and the log tell
	}
	client := u.client
	event := &v1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: "store-room.", Namespace: metav1.NamespaceDefault},
		InvolvedObject: v1.ObjectReference{APIVersion: "v1", Kind: "Namespace", Name: metav1.NamespaceSystem},
		Reason:         "StoreHasRoom", Type: v1.EventTypeNormal, Message: usage.String(), Source: v1.EventSource{Component: "berth"},
		FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now(), Count: 1,
	}
	if usage.Warn() {
		event.Reason, event.Type = "StoreNearlyFull", v1.EventTypeWarning
		event.Message += ": at 90 % no new objects are taken; delete what is not needed"
	}
	go func() { // the store waits for no one
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if _, err := client.CoreV1().Events(event.Namespace).Create(ctx, event, metav1.CreateOptions{}); err != nil {
			u.log.Warn("reporting how full the store is", "err", err)
		}
	}()
}
