package api

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

func bookmark(end bool) watch.Event {
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "7"}}
	if end {
		o.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	}
	return watch.Event{Type: watch.Bookmark, Object: o}
}

// A watch without allowWatchBookmarks never sees one; with it, one a minute and
// the end of the initial events.
func TestFilterBookmarks(t *testing.T) {
	event := watch.Event{Type: watch.Added, Object: &corev1.ConfigMap{}}
	for _, c := range []struct {
		what   string
		wanted bool
		sent   []watch.Event
		after  time.Duration
		passed int
	}{
		{"unwanted", false, []watch.Event{bookmark(false), event, bookmark(true), event}, bookmarkPeriod, 2},
		{"wanted, too soon", true, []watch.Event{bookmark(false), event}, bookmarkPeriod / 2, 1},
		{"wanted, in time", true, []watch.Event{bookmark(false), bookmark(false), event}, bookmarkPeriod, 2},
		{"the end of the initial events", true, []watch.Event{bookmark(true), event}, 0, 2},
	} {
		t.Run(c.what, func(t *testing.T) {
			start, calls := time.Now(), 0
			now := func() time.Time {
				if calls++; calls == 1 {
					return start
				}
				return start.Add(c.after)
			}
			source := watch.NewFake()
			w := filterBookmarks(source, c.wanted, now)
			go func() {
				for _, e := range c.sent {
					source.Action(e.Type, e.Object)
				}
				source.Stop()
			}()
			passed := 0
			for range w.ResultChan() {
				passed++
			}
			if passed != c.passed {
				t.Errorf("%d events passed, want %d", passed, c.passed)
			}
		})
	}
}
