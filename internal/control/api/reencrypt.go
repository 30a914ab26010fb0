package api

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"github.com/berth-dev/berth/internal/control/api/encryption"
)

// reencryptPage is how many objects are read at once.
const reencryptPage = 250

// encrypt loads the keys for what is stored and follows their file.
func (s *Server) encrypt(conf *genericapiserver.Config) error {
	file := s.cfg.Options.EncryptionConfig
	if file == "" {
		return nil
	}
	var err error
	if s.encryption, err = encryption.Load(s.life, file, conf.APIServerID); err != nil {
		return err
	}
	conf.AddReadyzChecks(s.encryption.HealthCheck())
	s.background = append(s.background, task{"following the encryption configuration", func(ctx context.Context) error {
		return s.encryption.Follow(ctx, s.cfg.Log)
	}})
	return nil
}

// Reencrypt writes every object of the encrypted resources again, so that it
// is stored under the first provider and key of the configuration. It returns
// how many there were.
func (s *Server) Reencrypt(ctx context.Context) (int, error) {
	if s.encryption == nil {
		return 0, errors.New("nothing is encrypted: start the server with --encryption-provider-config")
	}
	if err := s.encryption.Reload(); err != nil {
		return 0, err
	}
	resources, err := encryption.Resources(s.cfg.Options.EncryptionConfig)
	if err != nil {
		return 0, err
	}
	config := s.LoopbackConfig()
	config.ContentType = "application/json"
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return 0, fmt.Errorf("re-encrypting: %w", err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(s.client.Discovery()))
	total := 0
	for _, name := range resources {
		gvr, err := mapper.ResourceFor(schema.ParseGroupResource(name).WithVersion(""))
		if err != nil {
			return total, fmt.Errorf("re-encrypting %s: %w (wildcards must be re-encrypted by hand: kubectl get RESOURCE -A -o json | "+
				"kubectl replace -f -)", name, err)
		}
		n, err := rewrite(ctx, client.Resource(gvr))
		if total += n; err != nil {
			return total, fmt.Errorf("re-encrypting %s: %w", name, err)
		}
	}
	return total, nil
}

// rewrite updates each object with itself. The server stores it again since it
// is not stored under the first key. Who wrote or deleted it meanwhile did so
// under that key.
func rewrite(ctx context.Context, objects dynamic.NamespaceableResourceInterface) (int, error) {
	total, from := 0, ""
	for {
		list, err := objects.List(ctx, metav1.ListOptions{Limit: reencryptPage, Continue: from})
		if err != nil {
			return total, err
		}
		for i := range list.Items {
			o := &list.Items[i]
			_, err := objects.Namespace(o.GetNamespace()).Update(ctx, o, metav1.UpdateOptions{FieldManager: "berth-encryption"})
			if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
				return total, fmt.Errorf("%s/%s: %w", o.GetNamespace(), o.GetName(), err)
			}
			total++
		}
		if from = list.GetContinue(); from == "" {
			return total, nil
		}
	}
}
