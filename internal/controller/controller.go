package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/controller-manager/app"
)

// Controller is one line of a list of controllers: what it is called, who it
// acts as, what it watches, reads and writes. The rights are written as in the
// RBAC policy, "verb,verb resource.group/subresource ...", one line per set of
// verbs; tests hold the declaration against the requests it makes and against
// the roles of its account.
type Controller struct {
	// Name and Alias are upstream's long and short name.
	Name, Alias string
	// Account is upstream's service account for it in kube-system. A component
	// that is none of upstream's controllers acts as User instead.
	Account, User string
	// Watches are the resources it follows through the shared informers.
	Watches string
	// Reads are its live reads, Writes its writes; both go through a client
	// that acts as Account.
	Reads, Writes string
	// Run is the controller. It returns when ctx ends, or with what ended it.
	Run func(ctx context.Context, e Env) error
}

// Enabled says which controllers of a command line run.
type Enabled func(name string) bool

// Choose reads the words of --controllers as kube-controller-manager does: "*"
// is all, "name" adds one, "-name" leaves one out, and of several words about
// one controller the first counts. No word means all. An unknown name is an
// error that lists the known ones.
func Choose(words []string, known ...Controller) (Enabled, error) {
	if len(words) == 0 {
		words = []string{"*"}
	}
	long, names := map[string]string{}, []string{}
	for _, c := range known {
		names = append(names, c.Name)
		long[c.Name] = c.Name
		if c.Alias != "" {
			long[c.Alias] = c.Name
		}
	}
	said := slices.Clone(words)
	for i, w := range words {
		if w == "*" {
			continue
		}
		name, off := strings.CutPrefix(w, "-")
		if long[name] == "" {
			return nil, fmt.Errorf("--controllers: %q is not one of *, %s", name, strings.Join(names, ", "))
		}
		said[i] = long[name]
		if off {
			said[i] = "-" + long[name]
		}
	}
	return func(name string) bool { return app.IsControllerEnabled(name, sets.NewString(), said) }, nil
}

// Clients makes the clients that a controller acts with.
type Clients func(c Controller) (kubernetes.Interface, metadata.Interface, error)

// Start returns what runs a controller with its own identity: e as its name and,
// where clients is given, its client. Its event handlers end with it.
func (c Controller) Start(e Env, clients Clients) func(ctx context.Context) error {
	e.Name = c.Name
	e.Log = e.Log.With("controller", c.Name)
	return func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if clients != nil {
			if e.Reader == nil {
				e.Reader = e.Client
			}
			client, md, err := clients(c)
			if err != nil {
				return fmt.Errorf("making the client of %s: %w", c.Name, err)
			}
			e.Client, e.Metadata = client, md
		}
		if err := e.Check(); err != nil {
			return err
		}
		return c.Run(ctx, e)
	}
}
