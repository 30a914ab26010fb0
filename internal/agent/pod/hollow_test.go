package pod

import (
	"errors"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"encoding/json"
)

// answer applies a hollow pod's status patch as the API does.
func answer(t *testing.T, have *v1.Pod, w *Write) *v1.Pod {
	t.Helper()
	from, err := json.Marshal(have)
	if err != nil {
		t.Fatal(err)
	}
	to, err := strategicpatch.StrategicMergePatch(from, w.Patch, v1.Pod{})
	if err != nil {
		t.Fatal(err)
	}
	out := &v1.Pod{}
	if err := json.Unmarshal(to, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestHollowPodLivesAndDies: one status write brings it up, a failed write is
// tried again, and a deletion is confirmed to the API.
func TestHollowPodLivesAndDies(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	pod := testPod(v1.RestartPolicyAlways, "app", "helper")
	pod.Name, pod.Namespace, pod.UID = "p", "default", "uid-p"
	h := NewHollow(pod, "10.1.2.3", Node{IPs: []string{"10.0.0.1"}}, now)
	w, _, over, err := h.Step(now)
	if err != nil || over || w == nil || w.Patch == nil {
		t.Fatalf("first step: write %v, over %t, %v", w, over, err)
	}
	h.Wrote(w, nil, errors.New("the API is away"), now)
	w, wake, _, err := h.Step(now)
	if err != nil || w != nil || !wake.After(now) {
		t.Fatalf("after a failed write: write %v, again at %s, %v", w, wake, err)
	}
	now = wake
	if w, _, _, err = h.Step(now); err != nil || w == nil {
		t.Fatalf("no second try: %v", err)
	}
	pod = answer(t, pod, w)
	h.Wrote(w, pod, nil, now)
	if pod.Status.Phase != v1.PodRunning || pod.Status.PodIP != "10.1.2.3" || !ready(&pod.Status) ||
		len(pod.Status.ContainerStatuses) != 2 {
		t.Errorf("the status is %+v", pod.Status)
	}
	if w, wake, over, err = h.Step(now); w != nil || !wake.IsZero() || over || err != nil {
		t.Errorf("a running pod still wants %v, at %s, over %t, %v", w, wake, over, err)
	}

	pod = pod.DeepCopy()
	at, grace := metav1.NewTime(now), int64(30)
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &at, &grace
	h.Set(pod)
	deleted := false
	for range 20 {
		w, wake, over, err = h.Step(now)
		switch {
		case err != nil:
			t.Fatal(err)
		case over:
			if !deleted {
				t.Error("it is over before the API was told")
			}
			return
		case w == nil && wake.IsZero():
			t.Fatalf("it waits for nothing; %s", strings.Join(factNames(h), ", "))
		case w == nil:
			now = wake
		case w.Delete:
			deleted = true
			h.Wrote(w, nil, nil, now)
			h.Gone()
		default:
			pod = answer(t, pod, w)
			h.Set(pod)
			h.Wrote(w, pod, nil, now)
		}
	}
	t.Error("it does not end")
}

func factNames(h *Hollow) (out []string) {
	for _, f := range next(h.obs.view(h.spec), &h.obs, time.Time{}).Because {
		out = append(out, f.Name+"="+f.Value)
	}
	return out
}
