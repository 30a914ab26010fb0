package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/internal/agent/container"
	"github.com/berth-dev/berth/internal/agent/image"
	"github.com/berth-dev/berth/internal/agent/pod"
	"github.com/berth-dev/berth/internal/agent/volume"
)

// backOffShownAfter is when a failed pull turns into a back-off in the status:
// the puller is asked again and answers with the wait that is left.
const backOffShownAfter = 2 * time.Second

// imageSet adapts the puller to the pods' view of it and remembers what it
// found out about the images.
type imageSet struct {
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

// Ensure makes a container's image and the images of its volumes present.
func (s *imageSet) Ensure(ctx context.Context, p *v1.Pod, c *v1.Container) (string, error) {
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

func (s *imageSet) explain(err error) error {
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
func (s *imageSet) image(uid types.UID, name string) (container.Image, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.found[uid][name]
	return i, ok
}

// volumeRef returns what an image volume's reference resolved to.
func (s *imageSet) volumeRef(uid types.UID, volume string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.volumes[uid][volume]
}

// forget drops what is remembered of a pod that is gone.
func (s *imageSet) forget(uid types.UID) {
	s.puller.Forget(uid)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.found, uid)
	delete(s.volumes, uid)
}

// accounts gives credential provider plugins the pods' service accounts.
type accounts struct {
	client  kubernetes.Interface
	volumes *volume.Manager
}

// Account reads a service account.
func (a accounts) Account(ctx context.Context, namespace, name string) (image.Account, error) {
	sa, err := a.client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return image.Account{}, err
	}
	return image.Account{UID: sa.UID, Annotations: sa.Annotations}, nil
}

// Token is a token of the pod's service account.
func (a accounts) Token(ctx context.Context, p *v1.Pod, audience string) (string, error) {
	return a.volumes.Token(ctx, p, audience)
}

// credentialProviders are the plugins that the flags name, nil for none.
func (a *Agent) credentialProviders() (*image.Providers, error) {
	cfg := &a.Config
	switch {
	case cfg.CredentialProviders == "" && cfg.CredentialProviderDir == "":
		return nil, nil
	case cfg.CredentialProviders == "" || cfg.CredentialProviderDir == "":
		return nil, errors.New("reading credential providers: --image-credential-provider-config and --image-credential-provider-bin-dir belong together")
	}
	var who image.Accounts
	if cfg.Client != nil {
		who = accounts{client: cfg.Client, volumes: a.Volumes}
	}
	return image.LoadProviders(cfg.CredentialProviders, cfg.CredentialProviderDir, who, nil)
}
