package api

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"

	"github.com/berth-dev/berth/internal/control/api/addresses"
	"github.com/berth-dev/berth/internal/control/auth"
	"github.com/berth-dev/berth/internal/controller"
)

// keepRetry is the pause between attempts to put a missing object back.
var keepRetry = controller.Backoff{First: 100 * time.Millisecond, Most: 30 * time.Second}

// bootstrap creates the objects every cluster starts with. It can run any
// number of times, also beside another server's.
func (s *Server) bootstrap(ctx context.Context) error {
	// The other objects live in the namespaces.
	if err := s.finishing(stepNamespaces, s.ensureNamespaces)(ctx); err != nil {
		return err
	}
	// The rest is independent of each other, and writes at once share a sync of
	// the disk.
	parts := []func(context.Context) error{
		s.finishing(stepPriorityClasses, s.ensurePriorityClasses),
		s.finishing(stepAPIService, s.ensureAPIService),
		s.finishing(stepServiceCIDR, s.ensureServiceCIDR),
		s.finishing(stepTrust, s.ensureTrust),
		s.finishing(stepRoles, func(ctx context.Context) error { return auth.EnsurePolicy(ctx, s.client) }),
	}
	if s.cfg.PriorityAndFairness {
		parts = append(parts, s.finishing(stepFairness, s.ensureFairness))
	}
	errs := make([]error, len(parts))
	var wg sync.WaitGroup
	for i, part := range parts {
		wg.Go(func() { errs[i] = part(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// reconcileBootstrapObjects restores the bootstrap objects whenever one of them is
// deleted or changed, until ctx ends. It waits for events and never polls.
func (s *Server) reconcileBootstrapObjects(ctx context.Context) {
	wake := make(chan struct{}, 1)
	trigger := func() {
		select {
		case wake <- struct{}{}:
		default: // already about to look
		}
	}
	s.watchBootstrapObjects(ctx, trigger)
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		}
		if !s.bootstrapUntilDone(ctx) {
			return
		}
	}
}

// bootstrapUntilDone repeats bootstrap until it succeeds (true) or ctx ends.
func (s *Server) bootstrapUntilDone(ctx context.Context) bool {
	retry := controller.Retry{Backoff: keepRetry}
	for {
		err := s.bootstrap(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		pause := retry.Failed()
		s.cfg.Log.Warn("creating the cluster's own objects", "err", err, "retry", pause)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
		}
	}
}

// watchBootstrapObjects calls changed when a bootstrap object changes or is deleted.
func (s *Server) watchBootstrapObjects(ctx context.Context, changed func()) {
	core, discovery := s.client.CoreV1().RESTClient(), s.client.DiscoveryV1().RESTClient()
	named := fields.OneTermEqualSelector(metav1.ObjectNameField, apiServiceName)
	onDelete := cache.ResourceEventHandlerFuncs{DeleteFunc: func(any) { changed() }}
	onChange := cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, _ any) { changed() },
		DeleteFunc: func(any) { changed() },
	}
	var synced []cache.DoneChecker
	run := func(client cache.Getter, resource, namespace string, which fields.Selector, example runtime.Object,
		h cache.ResourceEventHandler) {
		_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
			ListerWatcher: cache.NewListWatchFromClient(client, resource, namespace, which),
			ObjectType:    example,
			Handler:       h,
		})
		go informer.RunWithContext(ctx)
		synced = append(synced, informer.HasSyncedChecker())
	}
	run(core, "namespaces", "", fields.Everything(), &corev1.Namespace{}, onDelete)
	run(core, "services", metav1.NamespaceDefault, named, &corev1.Service{}, onDelete)
	//lint:ignore SA1019 old clients still read this one
	run(core, "endpoints", metav1.NamespaceDefault, named, &corev1.Endpoints{}, onChange)
	run(discovery, "endpointslices", metav1.NamespaceDefault, named, &discoveryv1.EndpointSlice{}, onChange)
	go func() {
		// What went before the watches began is seen by no one but this look.
		if cache.WaitFor(ctx, "", synced...) {
			changed()
		}
	}()
}

func (s *Server) ensureNamespaces(ctx context.Context) error {
	list, err := s.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing namespaces: %w", err)
	}
	exists := map[string]bool{}
	for i := range list.Items {
		exists[list.Items[i].Name] = true
	}
	for _, name := range systemNamespaces {
		if exists[name] {
			continue
		}
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := s.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating namespace %s: %w", name, err)
		}
	}
	return nil
}

func (s *Server) ensurePriorityClasses(ctx context.Context) error {
	classes := s.client.SchedulingV1().PriorityClasses()
	list, err := classes.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing priority classes: %w", err)
	}
	exists := map[string]bool{}
	for i := range list.Items {
		exists[list.Items[i].Name] = true
	}
	for _, class := range systemPriorityClasses() {
		if exists[class.Name] {
			continue
		}
		if _, err := classes.Create(ctx, class, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating priority class %s: %w", class.Name, err)
		}
	}
	return nil
}

// ensureServiceCIDR publishes the configured service CIDRs as the object other
// ranges are added beside.
func (s *Server) ensureServiceCIDR(ctx context.Context) error {
	ranges, err := parseRanges(s.cfg.ServiceCIDRs)
	if err != nil {
		return err
	}
	return addresses.Publish(ctx, s.client.NetworkingV1().ServiceCIDRs(), ranges)
}

// ensureAPIService keeps the service default/kubernetes and its endpoints,
// through which pods reach this server.
func (s *Server) ensureAPIService(ctx context.Context) error {
	services := s.client.CoreV1().Services(metav1.NamespaceDefault)
	if _, err := services.Get(ctx, apiServiceName, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		want, err := apiService(s.cfg.ServiceCIDRs[0], s.port())
		if err != nil {
			return err
		}
		if _, err := services.Create(ctx, want, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating service %s: %w", apiServiceName, err)
		}
	} else if err != nil {
		return fmt.Errorf("reading service %s: %w", apiServiceName, err)
	}
	if s.advertised.IsLoopback() {
		return nil // see Config.AdvertiseAddress
	}
	return errors.Join(s.ensureEndpoints(ctx), s.ensureSlice(ctx))
}

func (s *Server) ensureEndpoints(ctx context.Context) error {
	client := s.client.CoreV1().Endpoints(metav1.NamespaceDefault)
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		have, err := client.Get(ctx, apiServiceName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = client.Create(ctx, apiEndpoints(nil, s.advertised, s.port(), false), metav1.CreateOptions{})
		} else if err == nil {
			want := apiEndpoints(have, s.advertised, s.port(), !s.cfg.Store.Embedded())
			if !apiequality.Semantic.DeepEqual(have, want) {
				_, err = client.Update(ctx, want, metav1.UpdateOptions{})
			}
		}
		if err != nil {
			return fmt.Errorf("writing endpoints %s: %w", apiServiceName, err)
		}
		return nil
	})
}

func (s *Server) ensureSlice(ctx context.Context) error {
	client := s.client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault)
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		have, err := client.Get(ctx, apiServiceName, metav1.GetOptions{})
		if err == nil && have.AddressType != addressType(s.advertised) {
			// The type cannot change; the server moved to the other family.
			if err := client.Delete(ctx, apiServiceName, metav1.DeleteOptions{}); err != nil {
				return fmt.Errorf("replacing endpoint slice %s: %w", apiServiceName, err)
			}
			err = apierrors.NewNotFound(discoveryv1.Resource("endpointslices"), apiServiceName)
		}
		if apierrors.IsNotFound(err) {
			_, err = client.Create(ctx, apiSlice(nil, s.advertised, s.port(), false), metav1.CreateOptions{})
		} else if err == nil {
			want := apiSlice(have, s.advertised, s.port(), !s.cfg.Store.Embedded())
			if !apiequality.Semantic.DeepEqual(have, want) {
				_, err = client.Update(ctx, want, metav1.UpdateOptions{})
			}
		}
		if err != nil {
			return fmt.Errorf("writing endpoint slice %s: %w", apiServiceName, err)
		}
		return nil
	})
}
