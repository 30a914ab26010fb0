package image

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	clocktesting "k8s.io/utils/clock/testing"
)

// A crash between the runtime's pull and our record leaves an image whose
// owner is unknown: it is not free.
func TestInterruptedPullIsVerified(t *testing.T) {
	rt, dir := newRuntime(), t.TempDir()
	p := newPuller(t, Config{Service: rt, Dir: dir})
	rt.images["a.example/x:1"] = &runtimeapi.Image{Id: "sha256:x"}
	if _, err := p.records.intend("a.example/x:1"); err != nil {
		t.Fatal(err)
	}
	p = newPuller(t, Config{Service: rt, Dir: dir})
	_, err := ensure(p, testPod("a"), "a.example/x:1", v1.PullNever)
	wantError(t, err, ReasonErrImageNeverPull, "")
}

func TestSameImageIsPulledOnce(t *testing.T) {
	rt, reg := newRuntime(), newRegistry(t)
	image := reg.push(t, "app:1")
	hold := make(chan struct{})
	reg.set(func(r *testRegistry) { r.hold = hold })
	p := newPuller(t, Config{Service: rt})
	var wg sync.WaitGroup
	start := func(uid string) {
		wg.Go(func() {
			if _, err := ensure(p, testPod(uid), image, v1.PullIfNotPresent); err != nil {
				t.Error(err)
			}
		})
	}
	start("leader")
	<-reg.held
	for i := range 10 {
		start(fmt.Sprint(i))
	}
	close(hold)
	wg.Wait()
	if got := rt.pulled(); got != image+" as " {
		t.Errorf("pulled %s", got)
	}
}

func TestPullsAreBounded(t *testing.T) {
	rt, reg := newRuntime(), newRegistry(t)
	var images []string
	for i := range 12 {
		images = append(images, reg.push(t, fmt.Sprintf("app%d:1", i)))
	}
	p := newPuller(t, Config{Service: rt, MaxParallel: 3})
	var wg sync.WaitGroup
	for i, image := range images {
		wg.Go(func() {
			if _, err := ensure(p, testPod(fmt.Sprint(i)), image, v1.PullIfNotPresent); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if rt.most > 3 {
		t.Errorf("%d pulls at a time", rt.most)
	}
}

func TestQPSLimit(t *testing.T) {
	clk := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	rt, reg := newRuntime(), newRegistry(t)
	p := newPuller(t, Config{Service: rt, QPS: 1, Burst: 1, Clock: clk})
	if _, err := ensure(p, testPod("a"), reg.push(t, "a:1"), v1.PullAlways); err != nil {
		t.Fatal(err)
	}
	_, err := ensure(p, testPod("b"), reg.push(t, "b:1"), v1.PullAlways)
	wantError(t, err, ReasonErrImagePull, "pull QPS exceeded")
}

func TestClassify(t *testing.T) {
	for text, want := range map[string]string{
		"rpc error: code = Unknown desc = RegistryUnavailable: timeout": "RegistryUnavailable|image pull failed for i because the " +
			"registry is unavailable: timeout",
		"rpc error: code = Unknown desc = SignatureValidationFailed: no key": "SignatureValidationFailed|image pull failed for i because " +
			"the signature validation failed: no key",
		"rpc error: code = Unknown desc = disk full": "ErrImagePull|rpc error: code = Unknown desc = disk full",
	} {
		reason, message := classify("i", errors.New(text))
		if got := reason + "|" + message; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestImageVolumes(t *testing.T) {
	rt, reg := newRuntime(), newRegistry(t)
	image := reg.push(t, "data:1")
	p := newPuller(t, Config{Service: rt})
	pod := testPod("a")
	pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: image}}}, {Name: "w"}}
	c := &v1.Container{Name: "c", VolumeMounts: []v1.VolumeMount{{Name: "v"}, {Name: "w"}}}
	out, err := p.EnsureVolumes(context.Background(), pod, c)
	if err != nil || len(out) != 1 || out["v"].Ref == "" {
		t.Errorf("%v, %v", out, err)
	}
}
