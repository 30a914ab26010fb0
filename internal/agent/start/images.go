package start

import (
	"context"
	"errors"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/agent/container"
	"github.com/berth-dev/berth/internal/agent/image"
	"github.com/berth-dev/berth/internal/agent/pod"
)

// backOffShownAfter is when a failed pull turns into a back-off in the status:
// the puller is asked again and answers with the wait that is left.
const backOffShownAfter = 2 * time.Second

// Images is the pods' view of the puller; it remembers what was found out about
// the images.
type Images struct {
	puller *image.Puller
	now    func() time.Time

	mu      sync.Mutex
	found   map[types.UID]map[string]container.Image
	volumes map[types.UID]map[string]string // image volume -> reference to mount
	seen    map[string]bool                 // references used before
	// changed, if set, is called when an image is used for the first time: it
	// may have been pulled just now.
	changed func()
}

// NewImages makes the view; changed is called when an image is used for the first
// time.
func NewImages(puller *image.Puller, changed func()) *Images {
	return &Images{puller: puller, now: time.Now, found: map[types.UID]map[string]container.Image{},
		volumes: map[types.UID]map[string]string{},
		seen:    map[string]bool{}, changed: changed}
}

// Ensure makes a container's image and the images of its volumes present.
func (s *Images) Ensure(ctx context.Context, p *v1.Pod, c *v1.Container) (string, error) {
	r, err := s.puller.Ensure(ctx, p, c)
	if err != nil {
		return "", s.explain(err)
	}
	volumes, err := s.puller.EnsureVolumes(ctx, p, c)
	if err != nil {
		return "", s.explain(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.found[p.UID] == nil {
		s.found[p.UID] = map[string]container.Image{}
	}
	if !s.seen[r.Ref] && s.changed != nil {
		s.seen[r.Ref] = true
		s.changed()
	}
	s.found[p.UID][c.Name] = container.Image{Ref: r.Ref, UID: r.UID, Username: r.Username}
	for name, v := range volumes {
		if s.volumes[p.UID] == nil {
			s.volumes[p.UID] = map[string]string{}
		}
		s.volumes[p.UID][name] = v.Ref
	}
	return r.Ref, nil
}

func (s *Images) explain(err error) error {
	var e *image.Error
	if !errors.As(err, &e) {
		return err
	}
	at := e.RetryAt
	if soon := s.now().Add(backOffShownAfter); e.Reason != image.ReasonImagePullBackOff && at.After(soon) {
		at = soon
	}
	return &pod.Error{Reason: e.Reason, Message: e.Message, RetryAt: at, Cause: err}
}

// image returns what is known of a container's image.
func (s *Images) image(uid types.UID, name string) (container.Image, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.found[uid][name]
	return i, ok
}

// volumeRef returns what an image volume's reference resolved to.
func (s *Images) volumeRef(uid types.UID, volume string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.volumes[uid][volume]
}

// Forget drops what is remembered of a pod that is gone.
func (s *Images) Forget(uid types.UID) {
	s.puller.Forget(uid)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.found, uid)
	delete(s.volumes, uid)
}
