package volume

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"time"

	certificates "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/journal"
)

// certKey names one podCertificate source.
type certKey struct {
	pod    types.UID
	volume string
	index  int
}

// certs asks for pods' certificates, follows the answers with one watch of this
// node's requests, and keeps keys and chains in memory only: an agent that
// starts again asks again.
type certs struct {
	following
	client   kubernetes.Interface
	clock    clock.PassiveClock
	nodeName string
	node     func() *v1.Node
	event    func(pod *v1.Pod, eventType, reason, message string)
	record   func(pod *v1.Pod, decision string, because ...journal.Fact)
	changed  func(pods []types.UID)
	jitter   func() time.Duration

	mu     sync.Mutex
	states map[certKey]*certEntry
}

// certEntry is one source; guarded by certs.mu. Its pod alone makes requests,
// one call at a time.
type certEntry struct {
	certState
	pod *v1.Pod
}

func newCerts(m *Manager) *certs {
	c := &certs{
		client: m.cfg.Client, clock: m.cfg.Clock, nodeName: m.cfg.NodeName, node: m.cfg.Node, event: m.cfg.event, record: m.record,
		changed: m.markDirty, jitter: func() time.Duration { return rand.N(certJitter) },
		states: map[certKey]*certEntry{},
	}
	c.following = following{watch: c.watchOwn, pause: m.objects.pause, ctx: m.ctx, wg: &m.wg}
	return c
}

// get is the credential of a source and when to ask for it again. With an
// error, a credential is that of before, and none means that the volume cannot
// be written.
func (c *certs) get(ctx context.Context, pod *v1.Pod, k certKey, p *v1.PodCertificateProjection) (*credential, time.Time, error) {
	c.follow(pod.UID)
	c.mu.Lock()
	e := c.states[k]
	if e == nil {
		e = &certEntry{}
		c.states[k] = e
	}
	e.pod = pod
	now := c.clock.Now()
	plan := e.plan(now)
	e.told(plan.reason)
	c.mu.Unlock()
	if plan.reason != "" {
		c.event(pod, v1.EventTypeWarning, plan.reason, plan.message)
	}
	var failed error
	if plan.ask {
		why := "the volume has none"
		if plan.held {
			why = "its time to be renewed has come"
		}
		c.record(pod, "asks for a certificate", journal.Fact{Name: "signer", Value: p.SignerName},
			journal.Fact{Name: "volume", Value: k.volume}, journal.Fact{Name: "because", Value: why})
		failed = c.request(ctx, e, p)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	due := e.plan(now).due
	switch {
	case failed != nil:
		return e.held, due, failed
	case e.refused != nil:
		return e.held, due, e.refused
	case e.held != nil:
		return e.held, due, nil
	case e.asked != nil:
		return nil, due, fmt.Errorf("%w yet: PodCertificateRequest %s/%s waits for signer %q", errNotIssued, pod.Namespace, e.asked.name,
			p.SignerName)
	}
	return nil, due, errNotIssued // gone in between: the pod is about to be woken
}

// request makes one request. Its name is noted before it is made, as the answer
// may come before the call returns.
func (c *certs) request(ctx context.Context, e *certEntry, p *v1.PodCertificateProjection) error {
	key, r, err := c.compose(ctx, e.pod, p)
	if err == nil {
		c.mu.Lock()
		e.ask(r.Name, key)
		c.mu.Unlock()
		_, err = c.client.CertificatesV1().PodCertificateRequests(r.Namespace).Create(ctx, r, metav1.CreateOptions{})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		e.notMade(c.clock.Now())
		return fmt.Errorf("asking signer %q for a certificate: %w", p.SignerName, err)
	}
	e.made(r.Name)
	return nil
}

// compose makes a key and the request for it.
func (c *certs) compose(ctx context.Context, pod *v1.Pod, p *v1.PodCertificateProjection) (key []byte,
	r *certificates.PodCertificateRequest, err error) {
	var node *v1.Node
	if c.node != nil {
		node = c.node()
	}
	if node == nil {
		return nil, nil, errors.New("the node's own object is not known yet")
	}
	account, err := c.client.CoreV1().ServiceAccounts(pod.Namespace).Get(ctx, pod.Spec.ServiceAccountName, metav1.GetOptions{})
	if err != nil {
		return nil, nil, err
	}
	key, stub, err := newPodKey(p.KeyType)
	if err != nil {
		return nil, nil, err
	}
	return key, &certificates.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: "req-" + utilrand.String(10),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		},
		Spec: certificates.PodCertificateRequestSpec{
			SignerName: p.SignerName, PodName: pod.Name, PodUID: pod.UID,
			ServiceAccountName: account.Name, ServiceAccountUID: account.UID,
			NodeName: types.NodeName(c.nodeName), NodeUID: node.UID,
			MaxExpirationSeconds: p.MaxExpirationSeconds, StubPKCS10Request: stub, UnverifiedUserAnnotations: p.UserAnnotations,
		},
	}, nil
}

// watchOwn follows this node's requests, the only ones it may see.
func (c *certs) watchOwn(ctx context.Context) (started bool, err error) {
	own := fields.OneTermEqualSelector("spec.nodeName", c.nodeName).String()
	api := c.client.CertificatesV1().PodCertificateRequests("")
	waiting := c.waiting() // before the list: what is made later need not be in it
	l, err := api.List(ctx, metav1.ListOptions{FieldSelector: own})
	if err != nil {
		return false, err
	}
	w, err := api.Watch(ctx, metav1.ListOptions{FieldSelector: own, ResourceVersion: l.ResourceVersion, AllowWatchBookmarks: true})
	if err != nil {
		return false, err
	}
	defer w.Stop()
	for i := range l.Items {
		delete(waiting, l.Items[i].Namespace+"/"+l.Items[i].Name)
		c.seen(&l.Items[i], false)
	}
	for _, r := range waiting {
		c.seen(r, true)
	}
	for {
		ev, ok := next(ctx, w)
		if !ok {
			return true, nil
		}
		r, ok := ev.Object.(*certificates.PodCertificateRequest)
		if !ok {
			return true, apierrors.FromObject(ev.Object)
		}
		if ev.Type != watch.Bookmark {
			c.seen(r, ev.Type == watch.Deleted)
		}
	}
}

// waiting are the requests that were made and not answered, by their full names.
func (c *certs) waiting() map[string]*certificates.PodCertificateRequest {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]*certificates.PodCertificateRequest{}
	for _, e := range c.states {
		if e.asked != nil && e.asked.made {
			out[e.pod.Namespace+"/"+e.asked.name] = &certificates.PodCertificateRequest{
				ObjectMeta: metav1.ObjectMeta{Namespace: e.pod.Namespace, Name: e.asked.name},
				Spec:       certificates.PodCertificateRequestSpec{PodUID: e.pod.UID},
			}
		}
	}
	return out
}

// seen takes the news of a request and wakes its pod if that changes anything.
func (c *certs) seen(r *certificates.PodCertificateRequest, gone bool) {
	pod, ended := c.take(r, gone)
	if pod == nil {
		return
	}
	if ended {
		answer, reason, message := answerOf(r)
		c.record(pod, "has the signer's answer", journal.Fact{Name: "answer", Value: answer}, journal.Fact{Name: "reason", Value: reason},
			journal.Fact{Name: "message", Value: message})
		if answer != certificates.PodCertificateRequestConditionTypeIssued {
			c.event(pod, v1.EventTypeWarning, answer, fmt.Sprintf("PodCertificateRequest %s/%s: reason=%q message=%q", r.Namespace, r.Name,
				reason, message))
		}
	}
	c.changed([]types.UID{r.Spec.PodUID})
}

// take finds whose request it is, nil when this changes nothing for anybody,
// and says whether it was answered. A request may be answered and deleted
// before either was seen.
func (c *certs) take(r *certificates.PodCertificateRequest, gone bool) (pod *v1.Pod, ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, e := range c.states {
		if k.pod != r.Spec.PodUID {
			continue
		}
		if e.answer(r, c.jitter()) {
			return e.pod, true
		}
		if gone && e.gone(r.Name) {
			return e.pod, false
		}
	}
	return nil, false
}

// answerOf is the condition that ended a request, and why.
func answerOf(r *certificates.PodCertificateRequest) (answer, reason, message string) {
	for _, c := range r.Status.Conditions {
		return c.Type, c.Reason, c.Message
	}
	return "", "", ""
}

// forget drops the keys of a pod.
func (c *certs) forget(uid types.UID) {
	c.following.forget(uid)
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.states {
		if k.pod == uid {
			delete(c.states, k)
		}
	}
}

// podCertificate adds the files of a podCertificate source.
func (c *collector) podCertificate(ctx context.Context, out payload, index int, p *v1.PodCertificateProjection, mode *int32) error {
	held, due, err := c.certs.get(ctx, c.pod, certKey{c.pod.UID, c.volume, index}, p)
	c.due = earliest(c.due, due)
	if held == nil {
		return err
	}
	if err != nil {
		c.degraded = fmt.Errorf("renewing certificate: %w", err)
	}
	bundle := append(append([]byte(nil), held.key...), held.chain...)
	for path, data := range map[string][]byte{p.CredentialBundlePath: bundle, p.KeyPath: held.key, p.CertificateChainPath: held.chain} {
		if path != "" {
			out[filepath.Clean(path)] = c.credentialFile(data, mode)
		}
	}
	return nil
}
