package volume

import (
	"context"
	"encoding/pem"
	"fmt"
	"path/filepath"
	"sort"
	"strings"

	certificates "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// bundles reads ClusterTrustBundles for the pods that project them, and
// follows the kind with one watch while any pod does.
type bundles struct {
	following
	client  kubernetes.Interface
	changed func(pods []types.UID)
}

func newBundles(m *Manager) *bundles {
	b := &bundles{client: m.cfg.Client, changed: m.markDirty}
	b.following = following{watch: b.watchAll, pause: m.objects.pause, ctx: m.ctx, wg: &m.wg}
	return b
}

// watchAll follows the kind and wakes all users on each change: bundles are few
// and change rarely, so who is concerned is not worth computing.
func (b *bundles) watchAll(ctx context.Context) (started bool, err error) {
	l, err := b.client.CertificatesV1().ClusterTrustBundles().List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return false, err
	}
	w, err := b.client.CertificatesV1().ClusterTrustBundles().Watch(ctx, metav1.ListOptions{
		ResourceVersion: l.ResourceVersion, AllowWatchBookmarks: true,
	})
	if err != nil {
		return false, err
	}
	defer w.Stop()
	b.wake() // what changed while no one watched
	for {
		ev, ok := next(ctx, w)
		if !ok {
			return true, nil
		}
		if _, ok := ev.Object.(*certificates.ClusterTrustBundle); !ok {
			return true, apierrors.FromObject(ev.Object)
		}
		if ev.Type != "BOOKMARK" {
			b.wake()
		}
	}
}

func (b *bundles) wake() {
	if pods := b.users(); len(pods) > 0 {
		b.changed(pods)
	}
}

// trustBundle adds the anchors of the selected bundles, each certificate once.
func (c *collector) trustBundle(ctx context.Context, out payload, p *v1.ClusterTrustBundleProjection, mode *int32) error {
	c.bundles.follow(c.pod.UID)
	anchors, err := c.bundles.anchors(ctx, p)
	if err != nil {
		return err
	}
	if anchors == "" && !isOptional(p.Optional) {
		return fmt.Errorf("no ClusterTrustBundle matches signerName %q with its labelSelector", deref(p.SignerName))
	}
	out[filepath.Clean(p.Path)] = file{data: []byte(anchors), mode: modeOr(nil, mode)}
	return nil
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func (b *bundles) anchors(ctx context.Context, p *v1.ClusterTrustBundleProjection) (string, error) {
	api := b.client.CertificatesV1().ClusterTrustBundles()
	if p.Name != nil {
		o, err := api.Get(ctx, *p.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) && isOptional(p.Optional) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		return mergeAnchors([]string{o.Spec.TrustBundle}), nil
	}
	// An absent selector selects nothing, an empty one everything. Nothing has
	// no spelling in a request, so it is not asked for.
	if p.LabelSelector == nil {
		return "", nil
	}
	selector, err := metav1.LabelSelectorAsSelector(p.LabelSelector)
	if err != nil {
		return "", fmt.Errorf("labelSelector of clusterTrustBundle: %w", err)
	}
	l, err := api.List(ctx, metav1.ListOptions{
		LabelSelector: selector.String(), FieldSelector: "spec.signerName=" + deref(p.SignerName),
	})
	if err != nil {
		return "", err
	}
	var texts []string
	for i := range l.Items {
		if l.Items[i].Spec.SignerName == deref(p.SignerName) {
			texts = append(texts, l.Items[i].Spec.TrustBundle)
		}
	}
	return mergeAnchors(texts), nil
}

// mergeAnchors keeps each certificate once, in an order that does not depend
// on the bundles', so that contents change only when certificates do.
func mergeAnchors(texts []string) string {
	seen := map[string]bool{}
	for _, t := range texts {
		rest := []byte(t)
		for {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			if block.Type == "CERTIFICATE" {
				seen[string(pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes}))] = true
			}
		}
	}
	list := make([]string, 0, len(seen))
	for c := range seen {
		list = append(list, c)
	}
	sort.Strings(list)
	return strings.Join(list, "")
}
