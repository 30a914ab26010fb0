package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/berth-dev/berth/internal/control/api/disruption"
	"github.com/berth-dev/berth/internal/control/api/nodelink"
	"github.com/berth-dev/berth/internal/control/api/pods"
	"github.com/berth-dev/berth/internal/control/api/scheme"
	"github.com/berth-dev/berth/internal/control/api/selectable"
	"github.com/berth-dev/berth/internal/control/api/storebase"
	"github.com/berth-dev/berth/internal/control/api/table"
)

// special is a group of resources whose storages are written by hand, because
// they do more than store. The keys of what make returns are resources and
// subresources, as in URLs.
type special struct {
	gv   schema.GroupVersion
	make func(opts generic.RESTOptionsGetter) (map[string]rest.Storage, error)
}

// specials lists them. They come after the rows and may replace a row's
// storage or add subresources to it.
func (s *Server) specials(set *scheme.Set) ([]special, error) {
	kit := storebase.Kit{
		Scheme: set.Scheme,
		Table:  table.Convertor,
		Attrs:  selectable.Attrs,
	}
	links, err := s.nodeLinks()
	if err != nil {
		return nil, err
	}
	more, err := s.storageSpecials(kit, links)
	if err != nil {
		return nil, err
	}
	return append([]special{
		{corev1.SchemeGroupVersion, func(opts generic.RESTOptionsGetter) (map[string]rest.Storage, error) {
			return pods.NewStorage(opts, pods.Deps{
				Kit:         kit,
				Disruptions: disruption.Client{API: s.client.PolicyV1()},
				Nodes:       links,
				Log:         s.cfg.Log,
			})
		}},
	}, more...), nil
}

// nodeLinks is the way to node agents, with our client certificate.
func (s *Server) nodeLinks() (nodelink.Finder, error) {
	conf := nodelink.Config{
		Nodes: func(ctx context.Context, name string) (*corev1.Node, error) {
			return s.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		},
		// Node names need no DNS; addresses always work.
		AddressTypes: []corev1.NodeAddressType{
			corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeHostName, corev1.NodeInternalDNS, corev1.NodeExternalDNS,
		},
	}
	pki := s.cfg.PKI
	if pki.KubeletCA == "" && pki.KubeletClientCert == "" {
		return nodelink.New(conf), nil
	}
	conf.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	if pki.KubeletCA != "" {
		pem, err := os.ReadFile(pki.KubeletCA)
		if err != nil {
			return nil, fmt.Errorf("reading CA of node agents: %w", err)
		}
		conf.TLS.RootCAs = x509.NewCertPool()
		if !conf.TLS.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("reading CA of node agents %s: it holds no PEM certificate", pki.KubeletCA)
		}
	}
	if pki.KubeletClientCert != "" {
		pair, err := tls.LoadX509KeyPair(pki.KubeletClientCert, pki.KubeletClientKey)
		if err != nil {
			return nil, fmt.Errorf("loading client certificate for node agents: %w", err)
		}
		conf.TLS.Certificates = []tls.Certificate{pair}
	}
	return nodelink.New(conf), nil
}
