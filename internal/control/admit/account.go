package admit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/control/auth/podref"
	"github.com/berth-dev/berth/internal/podutil"
)

// ServiceAccount gives every pod a service account and, unless told not to, a volume
// with its token.
const ServiceAccount = "ServiceAccount"

const (
	defaultAccount = "default"
	// tokenVolumePrefix begins the name of the volume; its mount path is where
	// every in-cluster client looks.
	tokenVolumePrefix = "kube-api-access-"
	tokenMountPath    = "/var/run/secrets/kubernetes.io/serviceaccount"
	// tokenSeconds marks tokens of this volume; the issuer knows it.
	tokenSeconds           = 60*60 + 7
	tokenFile              = "token"
	rootCAConfigMap        = "kube-root-ca.crt"
	rootCAKey              = "ca.crt"
	namespaceFile          = "namespace"
	limitSecretsAnnotation = "kubernetes.io/enforce-mountable-secrets"

	// A new namespace gets its default account moments later: pods that come
	// first wait this long for it.
	accountPatience = 1500 * time.Millisecond
)

type account struct {
	*admission.Handler
	client   kubernetes.Interface
	accounts corelisters.ServiceAccountLister
	// suffix makes a volume name unique among a pod's.
	suffix   func() string
	arrivals arrivals
}

func newServiceAccount(io.Reader) (admission.Interface, error) {
	return &account{
		Handler: admission.NewHandler(admission.Create, admission.Update),
		suffix:  func() string { return rand.String(5) },
	}, nil
}

func (s *account) SetExternalKubeClientSet(client kubernetes.Interface) { s.client = client }

func (s *account) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	accounts := f.Core().V1().ServiceAccounts()
	s.accounts = accounts.Lister()
	s.SetReadyFunc(allSynced(accounts.Informer()))
	// An informer that has stopped refuses handlers; then the server is stopping too.
	_, _ = accounts.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
		if sa, ok := obj.(*corev1.ServiceAccount); ok {
			s.arrivals.notify(sa.Namespace + "/" + sa.Name)
		}
	}})
}

func (s *account) ValidateInitialization() error {
	if s.accounts == nil || s.client == nil {
		return errors.New(ServiceAccount + " needs a client and an informer factory")
	}
	return nil
}

func (s *account) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod := podOf(a)
	if pod == nil || a.GetOperation() != admission.Create {
		return nil
	}
	if podutil.Mirror(pod) {
		return s.Validate(ctx, a, nil)
	}
	if pod.Spec.ServiceAccountName == "" {
		pod.Spec.ServiceAccountName = defaultAccount
	}
	pod.Spec.DeprecatedServiceAccount = pod.Spec.ServiceAccountName
	sa, err := s.find(ctx, a.GetNamespace(), pod.Spec.ServiceAccountName)
	if err != nil {
		return admission.NewForbidden(a, fmt.Errorf("error looking up service account %s/%s: %w", a.GetNamespace(),
			pod.Spec.ServiceAccountName, err))
	}
	if ptr.Deref(pod.Spec.AutomountServiceAccountToken, ptr.Deref(sa.AutomountServiceAccountToken, true)) {
		mountToken(pod, s.suffix)
	}
	if len(pod.Spec.ImagePullSecrets) == 0 {
		pod.Spec.ImagePullSecrets = slices.Clone(sa.ImagePullSecrets)
	}
	return s.Validate(ctx, a, nil)
}

// find waits a little for an account that is not there yet. The cache is
// asked first, then the API, since the cache may lag.
func (s *account) find(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	if !s.WaitForReady() {
		return nil, errors.New("not yet ready to handle request")
	}
	look := func() (*corev1.ServiceAccount, error) {
		return cachedOrLive(ctx, s.client,
			func() (*corev1.ServiceAccount, error) { return s.accounts.ServiceAccounts(namespace).Get(name) },
			func(ctx context.Context) (*corev1.ServiceAccount, error) {
				return s.client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
			})
	}
	sa, err := look()
	if !apierrors.IsNotFound(err) || name != defaultAccount {
		return sa, err
	}
	patience := time.NewTimer(accountPatience)
	defer patience.Stop()
	key := namespace + "/" + name
	for {
		created := s.arrivals.await(key)
		// It may have come since we looked.
		if sa, err = look(); !apierrors.IsNotFound(err) {
			s.arrivals.leave(key, created)
			return sa, err
		}
		select {
		case <-created.came:
			continue
		case <-patience.C:
		case <-ctx.Done():
		}
		s.arrivals.leave(key, created)
		return nil, err
	}
}

// arrivals tells those who wait for an object that it has come. It remembers a
// name only while someone waits for it: names come from users.
type arrivals struct {
	mu      sync.Mutex
	waiting map[string]*arrival
}

type arrival struct {
	came    chan struct{}
	waiters int
}

// await returns what closes when the object next comes. Who stops waiting
// before that calls leave.
func (w *arrivals) await(key string) *arrival {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting[key] == nil {
		if w.waiting == nil {
			w.waiting = map[string]*arrival{}
		}
		w.waiting[key] = &arrival{came: make(chan struct{})}
	}
	w.waiting[key].waiters++
	return w.waiting[key]
}

func (w *arrivals) leave(key string, a *arrival) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a.waiters--; a.waiters == 0 && w.waiting[key] == a {
		delete(w.waiting, key)
	}
}

// notify wakes all that wait for the service account.
func (w *arrivals) notify(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a := w.waiting[key]; a != nil {
		close(a.came)
		delete(w.waiting, key)
	}
}

// mountToken mounts the token volume into every container that has nothing at
// its path, and adds the volume if any does.
func mountToken(pod *corev1.Pod, suffix func() string) {
	volume, add := tokenVolumeName(pod, suffix)
	mount := corev1.VolumeMount{Name: volume, ReadOnly: true, MountPath: tokenMountPath}
	used := false
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == tokenMountPath }) {
				continue
			}
			c.VolumeMounts = append(c.VolumeMounts, mount)
			used = true
		}
	}
	if used && add {
		pod.Spec.Volumes = append(pod.Spec.Volumes, tokenVolume(volume))
	}
}

func tokenVolumeName(pod *corev1.Pod, suffix func() string) (name string, add bool) {
	taken := map[string]bool{}
	for i := range pod.Spec.Volumes {
		name := pod.Spec.Volumes[i].Name
		if strings.HasPrefix(name, tokenVolumePrefix) {
			// The pod was written out by a server and sent again.
			return name, false
		}
		taken[name] = true
	}
	for {
		if name := tokenVolumePrefix + suffix(); !taken[name] {
			return name, true
		}
	}
}

func tokenVolume(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: ptr.To(corev1.ProjectedVolumeSourceDefaultMode),
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: tokenFile, ExpirationSeconds: ptr.To[int64](tokenSeconds)}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: rootCAConfigMap},
				Items:                []corev1.KeyToPath{{Key: rootCAKey, Path: rootCAKey}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
				{Path: namespaceFile, FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"}},
			}}},
		},
	}}}
}

func (s *account) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := a.GetObject().(*corev1.Pod)
	debugging := a.GetSubresource() == "ephemeralcontainers" && a.GetOperation() == admission.Update
	if !ok || a.GetResource().GroupResource() != podsResource || !debugging &&
		(a.GetSubresource() != "" || a.GetOperation() != admission.Create) {
		return nil
	}
	if podutil.Mirror(pod) {
		if err := checkMirror(pod); err != nil {
			return admission.NewForbidden(a, err)
		}
		return nil
	}
	sa, err := s.find(ctx, a.GetNamespace(), pod.Spec.ServiceAccountName)
	if err != nil {
		return admission.NewForbidden(a, fmt.Errorf("error looking up service account %s/%s: %w", a.GetNamespace(),
			pod.Spec.ServiceAccountName, err))
	}
	if err := checkSecrets(pod, sa); err != nil {
		return admission.NewForbidden(a, err)
	}
	return nil
}

// checkMirror keeps a mirror pod from claiming an identity: its node wrote it,
// and would gain whatever it refers to.
func checkMirror(pod *corev1.Pod) error {
	if pod.Spec.ServiceAccountName != "" {
		return errors.New("a mirror pod may not reference service accounts")
	}
	if slices.ContainsFunc(podref.OfPod(pod), func(r podref.Ref) bool { return r.Kind == podref.Secret }) {
		return errors.New("a mirror pod may not reference secrets")
	}
	for i := range pod.Spec.Volumes {
		projected := pod.Spec.Volumes[i].Projected
		if projected != nil && slices.ContainsFunc(projected.Sources,
			func(p corev1.VolumeProjection) bool { return p.ServiceAccountToken != nil }) {
			return errors.New("a mirror pod may not use ServiceAccountToken volume projections")
		}
	}
	return nil
}

// checkSecrets applies an account's wish that its pods use no other secrets
// than it lists.
func checkSecrets(pod *corev1.Pod, sa *corev1.ServiceAccount) error {
	if sa.Annotations[limitSecretsAnnotation] != "true" {
		return nil
	}
	allowed := map[string]bool{}
	for _, s := range sa.Secrets {
		allowed[s.Name] = true
	}
	pulls := map[string]bool{}
	for _, s := range sa.ImagePullSecrets {
		pulls[s.Name] = true
	}
	for _, s := range pod.Spec.ImagePullSecrets {
		if !pulls[s.Name] {
			return fmt.Errorf(`imagePullSecrets[].name="%s" is not allowed because service account %s does not reference that `+
				`imagePullSecret`, s.Name, sa.Name)
		}
	}
	rest := pod.DeepCopy()
	rest.Spec.ImagePullSecrets = nil
	for _, ref := range podref.OfPod(rest) {
		if ref.Kind == podref.Secret && !allowed[ref.Name] {
			return fmt.Errorf("secret %q is not allowed because service account %s does not reference that secret", ref.Name, sa.Name)
		}
	}
	return nil
}
