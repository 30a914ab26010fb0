package controller

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// Impersonating makes clients that act as service accounts of kube-system, with
// the connections of a configuration that may impersonate them. The accounts
// need not exist and hold no credentials: nothing of theirs can be stolen.
func Impersonating(as *rest.Config) Clients {
	return func(of Controller) (kubernetes.Interface, metadata.Interface, error) {
		c := rest.AddUserAgent(rest.CopyConfig(as), of.Name)
		c.Impersonate = rest.ImpersonationConfig{UserName: serviceaccount.MakeUsername(metav1.NamespaceSystem, of.Account),
			Groups: append(serviceaccount.MakeGroupNames(metav1.NamespaceSystem), "system:authenticated")}
		client, err := kubernetes.NewForConfig(c)
		if err != nil {
			return nil, nil, fmt.Errorf("making a client that acts as %s: %w", c.Impersonate.UserName, err)
		}
		md, err := metadata.NewForConfig(c)
		if err != nil {
			return nil, nil, fmt.Errorf("making a metadata client that acts as %s: %w", c.Impersonate.UserName, err)
		}
		return client, md, nil
	}
}
