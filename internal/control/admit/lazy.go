package admit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// lazy stands in for a plugin that webhooks or policies extend, and makes the
// real one when the first of those is stored. The real ones compile
// expression environments and read the API's whole schema: a price that most
// clusters never need to pay.
type lazy struct {
	*admission.Handler
	name    string
	make    admission.Factory
	sources func(informers.SharedInformerFactory) []cache.SharedIndexInformer

	// configuration is what the administrator wrote for the plugin, or nil.
	configuration []byte

	setup  lazySetup
	needed atomic.Bool
	real   func() (admission.Interface, error)
}

// lazySetup is what a lazy plugin needs to make the real one later.
type lazySetup struct {
	informers    informers.SharedInformerFactory
	initializers admission.PluginInitializer
	stop         <-chan struct{}
}

// wantsLazySetup is how a plugin asks for lazySetup.
type wantsLazySetup interface{ setLazySetup(lazySetup) }

// lazyMutating and lazyValidating show the chain which half they belong to.
type (
	lazyMutating   struct{ *lazy }
	lazyValidating struct{ *lazy }
)

func newLazy(name string, make admission.Factory, sources func(informers.SharedInformerFactory) []cache.SharedIndexInformer) *lazy {
	return &lazy{
		Handler: admission.NewHandler(admission.Create, admission.Update, admission.Delete, admission.Connect),
		name:    name, make: make, sources: sources,
	}
}

func (l *lazy) setLazySetup(s lazySetup)     { l.setup = s }
func (l *lazy) setConfiguration(data []byte) { l.configuration = data }

func (l *lazy) ValidateInitialization() error {
	if l.setup.informers == nil || l.setup.initializers == nil || l.setup.stop == nil {
		return errors.New(l.name + " needs informers, initializers and a stop channel")
	}
	l.real = onceGood(l.build)
	var synced []cache.InformerSynced
	for _, informer := range l.sources(l.setup.informers) {
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) {
			l.needed.Store(true)
			// Made here so that requests find it ready; its error comes back to them.
			_, _ = l.real()
		}})
		if err != nil {
			return fmt.Errorf("watching what extends %s: %w", l.name, err)
		}
		synced = append(synced, registration.HasSynced)
	}
	l.SetReadyFunc(func() bool {
		for _, done := range synced {
			if !done() {
				return false
			}
		}
		return true
	})
	return nil
}

// onceGood remembers what make returns once it succeeds. After an error the
// next call tries again: the cause may be gone, and every write that the plugin
// concerns would be refused until then.
func onceGood[T any](make func() (T, error)) func() (T, error) {
	var mu sync.Mutex
	var made T
	done := false
	return func() (T, error) {
		mu.Lock()
		defer mu.Unlock()
		if done {
			return made, nil
		}
		fresh, err := make()
		if err == nil {
			made, done = fresh, true
		}
		return fresh, err
	}
}

func (l *lazy) build() (built admission.Interface, err error) {
	// The library takes for granted that informers still run when it adds its
	// handlers; one that was stopped at this very moment makes it panic.
	defer func() {
		if cause := recover(); cause != nil {
			built, err = nil, fmt.Errorf("making %s: the server is stopping (%v)", l.name, cause)
		}
	}()
	var configuration io.Reader
	if l.configuration != nil {
		configuration = bytes.NewReader(l.configuration)
	}
	plugin, err := l.make(configuration)
	if err != nil {
		return nil, fmt.Errorf("making %s: %w", l.name, err)
	}
	l.setup.initializers.Initialize(plugin)
	if err := admission.ValidateInitialization(plugin); err != nil {
		return nil, fmt.Errorf("initializing %s: %w", l.name, err)
	}
	// The plugin may have asked for informers that no one had before.
	l.setup.informers.Start(l.setup.stop)
	return plugin, nil
}

// delegate returns the real plugin, or nil when nothing asks for it yet.
func (l *lazy) delegate(a admission.Attributes) (admission.Interface, error) {
	if !l.WaitForReady() {
		return nil, admission.NewForbidden(a, errors.New("not yet ready to handle request"))
	}
	if !l.needed.Load() {
		return nil, nil
	}
	plugin, err := l.real()
	if err != nil {
		return nil, err
	}
	if !plugin.Handles(a.GetOperation()) {
		return nil, nil
	}
	return plugin, nil
}

func (l lazyMutating) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	plugin, err := l.delegate(a)
	if err != nil {
		return err
	}
	if mutating, ok := plugin.(admission.MutationInterface); ok {
		return mutating.Admit(ctx, a, o)
	}
	return nil
}

func (l lazyValidating) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	plugin, err := l.delegate(a)
	if err != nil {
		return err
	}
	if validating, ok := plugin.(admission.ValidationInterface); ok {
		return validating.Validate(ctx, a, o)
	}
	return nil
}

// extensible lists the plugins that are made lazily.
func extensible() map[string]admission.Factory {
	lazily := func(l func() admission.Interface) admission.Factory {
		return func(configuration io.Reader) (admission.Interface, error) {
			plugin := l()
			if configuration == nil {
				return plugin, nil
			}
			data, err := io.ReadAll(configuration)
			plugin.(interface{ setConfiguration([]byte) }).setConfiguration(data)
			return plugin, err
		}
	}
	return map[string]admission.Factory{
		mutatingPolicies: lazily(func() admission.Interface {
			return lazyMutating{newLazy(mutatingPolicies, makeMutatingPolicies,
				func(f informers.SharedInformerFactory) []cache.SharedIndexInformer {
					v1 := f.Admissionregistration().V1()
					return []cache.SharedIndexInformer{v1.MutatingAdmissionPolicies().Informer(),
						v1.MutatingAdmissionPolicyBindings().Informer()}
				})}
		}),
		mutatingWebhooks: lazily(func() admission.Interface {
			return lazyMutating{newLazy(mutatingWebhooks, makeMutatingWebhooks,
				func(f informers.SharedInformerFactory) []cache.SharedIndexInformer {
					return []cache.SharedIndexInformer{f.Admissionregistration().V1().MutatingWebhookConfigurations().Informer()}
				})}
		}),
		validatingPolicies: lazily(func() admission.Interface {
			return lazyValidating{newLazy(validatingPolicies, makeValidatingPolicies,
				func(f informers.SharedInformerFactory) []cache.SharedIndexInformer {
					v1 := f.Admissionregistration().V1()
					return []cache.SharedIndexInformer{v1.ValidatingAdmissionPolicies().Informer(),
						v1.ValidatingAdmissionPolicyBindings().Informer()}
				})}
		}),
		validatingWebhooks: lazily(func() admission.Interface {
			return lazyValidating{newLazy(validatingWebhooks, makeValidatingWebhooks,
				func(f informers.SharedInformerFactory) []cache.SharedIndexInformer {
					return []cache.SharedIndexInformer{f.Admissionregistration().V1().ValidatingWebhookConfigurations().Informer()}
				})}
		}),
	}
}
