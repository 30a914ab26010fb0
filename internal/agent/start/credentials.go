package start

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/internal/agent/image"
	"github.com/berth-dev/berth/internal/agent/volume"
)

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

// CredentialProviders are the plugins that the flags name: their configuration, a
// file or directory, and the directory where they are. Nil for none.
func CredentialProviders(config, dir string, client kubernetes.Interface, volumes *volume.Manager) (*image.Providers, error) {
	switch {
	case config == "" && dir == "":
		return nil, nil
	case config == "" || dir == "":
		return nil, errors.New("reading credential providers: --image-credential-provider-config and --image-credential-provider-bin-dir " +
			"belong together")
	}
	var who image.Accounts
	if client != nil {
		who = accounts{client: client, volumes: volumes}
	}
	return image.LoadProviders(config, dir, who, nil)
}
