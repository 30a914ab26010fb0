package admit

import (
	"context"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/lru"
)

// EventRateLimit bounds how many events are written, so that one sender cannot
// fill the store.
const EventRateLimit = "EventRateLimit"

// eventCacheSize is how many senders a limit remembers where nothing else is
// configured.
const eventCacheSize = 4096

// eventLimit is one bound; Type says what has a bucket of its own.
type eventLimit struct {
	Type      string `json:"type"`
	QPS       int32  `json:"qps"`
	Burst     int32  `json:"burst"`
	CacheSize int32  `json:"cacheSize,omitempty"`
}

// defaultEventLimits are for a plugin that is enabled without a configuration:
// a namespace in trouble does not silence the others.
var defaultEventLimits = []eventLimit{{Type: "Namespace", QPS: 50, Burst: 500}, {Type: "User", QPS: 200, Burst: 2000}}

// eventKeys name the bucket an event falls into, by type of limit.
var eventKeys = map[string]func(admission.Attributes) string{
	"Server":          func(admission.Attributes) string { return "" },
	"Namespace":       func(a admission.Attributes) string { return a.GetNamespace() },
	"User":            func(a admission.Attributes) string { return a.GetUserInfo().GetName() },
	"SourceAndObject": sourceAndObject,
}

func sourceAndObject(a admission.Attributes) string {
	parts := func(component, host string, about *corev1.ObjectReference) string {
		return strings.Join([]string{component, host, about.Kind, about.Namespace, about.Name, string(about.UID), about.APIVersion}, "\x00")
	}
	switch e := a.GetObject().(type) {
	case *corev1.Event:
		return parts(e.Source.Component, e.Source.Host, &e.InvolvedObject)
	case *eventsv1.Event:
		return parts(e.ReportingController, e.ReportingInstance, &e.Regarding)
	}
	return ""
}

type eventRate struct {
	*admission.Handler
	limits []boundEvents
}

// boundEvents is a limit with its buckets; the least used is forgotten first.
type boundEvents struct {
	eventLimit
	buckets *lru.Cache
}

func newEventRateLimit(configuration io.Reader) (admission.Interface, error) {
	limits := defaultEventLimits
	if configuration != nil {
		var file struct {
			APIVersion string       `json:"apiVersion"`
			Kind       string       `json:"kind"`
			Limits     []eventLimit `json:"limits"`
		}
		if err := decodeStrictly(configuration, &file); err != nil {
			return nil, fmt.Errorf("reading the configuration of %s: %w", EventRateLimit, err)
		}
		if file.Kind != "Configuration" || file.APIVersion != "eventratelimit.admission.k8s.io/v1alpha1" {
			return nil, fmt.Errorf("reading the configuration of %s: %s %s: want kind Configuration of "+
				"eventratelimit.admission.k8s.io/v1alpha1",
				EventRateLimit, file.APIVersion, file.Kind)
		}
		limits = file.Limits
	}
	if len(limits) == 0 {
		return nil, fmt.Errorf("reading the configuration of %s: limits: at least one is required", EventRateLimit)
	}
	e := &eventRate{Handler: admission.NewHandler(admission.Create, admission.Update)}
	for i, l := range limits {
		if eventKeys[l.Type] == nil || l.QPS <= 0 || l.Burst <= 0 || l.CacheSize < 0 {
			return nil, fmt.Errorf("reading the configuration of %s: limits[%d]: want type Server, Namespace, User or SourceAndObject, "+
				"qps and burst above 0, cacheSize 0 or more",
				EventRateLimit, i)
		}
		if l.CacheSize == 0 {
			l.CacheSize = eventCacheSize
		}
		e.limits = append(e.limits, boundEvents{l, lru.New(int(l.CacheSize))})
	}
	return e, nil
}

func (e *eventRate) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetKind().Kind != "Event" || a.IsDryRun() {
		return nil
	}
	var refusals []string
	for i := range e.limits {
		l := &e.limits[i]
		key := eventKeys[l.Type](a)
		// Every limit counts the event, also when another has refused it.
		if !l.bucket(key).TryAccept() {
			refusals = append(refusals, fmt.Sprintf("limit reached on type %s for key %s", l.Type, strings.ReplaceAll(key, "\x00", "_")))
		}
	}
	if len(refusals) > 0 {
		return apierrors.NewTooManyRequestsError(strings.Join(refusals, "; "))
	}
	return nil
}

func (l *boundEvents) bucket(key string) flowcontrol.RateLimiter {
	if have, ok := l.buckets.Get(key); ok {
		return have.(flowcontrol.RateLimiter)
	}
	fresh := flowcontrol.NewTokenBucketRateLimiter(float32(l.QPS), int(l.Burst))
	l.buckets.Add(key, fresh)
	return fresh
}
