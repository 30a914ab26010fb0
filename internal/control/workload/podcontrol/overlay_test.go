package podcontrol

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestOverlayShowsOwnWritesUntilTheCacheDoes(t *testing.T) {
	o := newOverlay()
	mk := func(uid string) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: uid, UID: types.UID(uid)}}
	}
	a, b := mk("a"), mk("b")
	o.Created("owner", a)
	if got := o.Merge("owner", nil); len(got) != 1 {
		t.Fatalf("a created pod is not seen: %v", got)
	}
	o.Seen(a, false)
	if got := o.Merge("owner", nil); len(got) != 0 {
		t.Fatalf("a pod the cache has shown and lost is still there: %v", got)
	}
	o.Deleted(b)
	if got := o.Merge("owner", []*v1.Pod{b}); len(got) != 1 || got[0].DeletionTimestamp == nil || b.DeletionTimestamp != nil {
		t.Fatalf("a deleted pod must show as terminating, in a copy: %v", got)
	}
	o.Seen(b, true)
	if got := o.Merge("owner", []*v1.Pod{b}); got[0].DeletionTimestamp != nil {
		t.Fatal("forgotten deletions must not stick")
	}
}
