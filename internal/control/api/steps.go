package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
)

// The parts of the start have the names of upstream's post-start hooks: clients
// look for them in /readyz?verbose. Each is healthy once its part is done.
const (
	stepNamespaces      = "start-system-namespaces-controller"
	stepRoles           = "rbac/bootstrap-roles"
	stepPriorityClasses = "scheduling/bootstrap-system-priority-classes"
	stepAPIService      = "bootstrap-controller"
	stepServiceCIDR     = "start-kubernetes-service-cidr-controller"
	stepTrust           = "start-cluster-authentication-info-controller"
	stepFairness        = "priority-and-fairness-config-producer"
	stepServiceRepair   = "start-service-ip-repair-controllers"
)

// builtSteps are done before the server listens: admission plugins are
// initialized, the OpenAPI documents installed and the watch caches read.
var builtSteps = []string{"start-apiserver-admission-initializer", "apiservice-openapi-controller", "storage-readiness"}

// step is a part of the start; it is done when done is closed.
type step struct {
	done chan struct{}
	once sync.Once
}

func newSteps(fairness bool) map[string]*step {
	out := map[string]*step{}
	for _, name := range []string{stepNamespaces, stepRoles, stepPriorityClasses, stepAPIService, stepServiceCIDR, stepTrust,
		stepServiceRepair} {
		out[name] = &step{done: make(chan struct{})}
	}
	if fairness {
		out[stepFairness] = &step{done: make(chan struct{})}
	}
	return out
}

// finish says that a part of the start is done; it may be said again.
func (s *Server) finish(name string) {
	step := s.steps[name]
	step.once.Do(func() { close(step.done) })
}

// addSteps shows the parts of the start in the health checks.
func (s *Server) addSteps() error {
	for name, step := range s.steps {
		hook := func(ctx genericapiserver.PostStartHookContext) error {
			select {
			case <-step.done:
			case <-ctx.Done():
			}
			return nil
		}
		if err := s.front.AddPostStartHook(name, hook); err != nil {
			return fmt.Errorf("adding hook %s: %w", name, err)
		}
	}
	for _, name := range builtSteps {
		if err := s.front.AddPostStartHook(name, func(genericapiserver.PostStartHookContext) error { return nil }); err != nil {
			return fmt.Errorf("adding hook %s: %w", name, err)
		}
	}
	return s.front.AddBootSequenceHealthChecks(healthz.NamedCheck("autoregister-completion", func(*http.Request) error {
		select {
		case <-s.front.Listed():
			return nil
		default:
			return errors.New("not every group of the API is registered yet")
		}
	}))
}

// finishing is a part of bootstrap that is shown as a step.
func (s *Server) finishing(name string, run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := run(ctx); err != nil {
			return err
		}
		s.finish(name)
		return nil
	}
}
