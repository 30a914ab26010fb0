package controller

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// Identity is the user that the controller acts as, with its groups.
func (c Controller) Identity() (name string, groups []string) {
	if c.User != "" {
		return c.User, []string{user.AllAuthenticated}
	}
	return serviceaccount.MakeUsername(metav1.NamespaceSystem, c.Account), append(serviceaccount.MakeGroupNames(metav1.NamespaceSystem),
		user.AllAuthenticated)
}

// Acting makes clients with which each controller acts as its own identity, of
// what makes a configuration for one. The service accounts need not exist: no
// credential of theirs is stored that somebody could take.
func Acting(as func(name string, groups ...string) *rest.Config) Clients {
	return func(c Controller) (kubernetes.Interface, metadata.Interface, error) {
		name, groups := c.Identity()
		cfg := rest.AddUserAgent(rest.CopyConfig(as(name, groups...)), c.Name)
		client, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			return nil, nil, fmt.Errorf("making a client that acts as %s: %w", name, err)
		}
		md, err := metadata.NewForConfig(cfg)
		if err != nil {
			return nil, nil, fmt.Errorf("making a metadata client that acts as %s: %w", name, err)
		}
		return client, md, nil
	}
}
