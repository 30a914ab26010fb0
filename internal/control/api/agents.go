package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"github.com/berth-dev/berth/internal/control/api/nodelink"
)

// nodeLinks is the way to node agents, with our client certificate. It follows
// the files: agents stop believing a certificate that expired, and the server
// need not be started again for a new one.
func (s *Server) nodeLinks(read func(context.Context, string) (*corev1.Node, error)) (nodelink.Finder, error) {
	conf := nodelink.Config{
		Nodes: read,
		// Node names need no DNS; addresses always work.
		AddressTypes: []corev1.NodeAddressType{
			corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeHostName, corev1.NodeInternalDNS, corev1.NodeExternalDNS,
		},
		Loopback: s.cfg.ProxyToLoopback,
		Local:    s.cfg.LocalAgent,
	}
	pki := s.cfg.PKI
	if pki.KubeletCA == "" && pki.KubeletClientCert == "" {
		return nodelink.New(conf), nil
	}
	links := &freshLinks{conf: conf, pki: pki, log: s.cfg.Log}
	if err := links.renew(); err != nil {
		return nil, err
	}
	if pki.KubeletCA != "" {
		ca, err := dynamiccertificates.NewDynamicCAContentFromFile("agent-ca", pki.KubeletCA)
		if err != nil {
			return nil, fmt.Errorf("reading CA of node agents: %w", err)
		}
		s.follow("following the CA of node agents", ca, links)
	}
	if pki.KubeletClientCert != "" {
		pair, err := dynamiccertificates.NewDynamicServingContentFromFiles("agent-client", pki.KubeletClientCert, pki.KubeletClientKey)
		if err != nil {
			return nil, fmt.Errorf("loading client certificate for node agents: %w", err)
		}
		s.follow("following the client certificate for node agents", pair, links)
	}
	return links, nil
}

// followed is content of files that tells when they change.
type followed interface {
	AddListener(dynamiccertificates.Listener)
	Run(ctx context.Context, workers int)
}

func (s *Server) follow(what string, files followed, listener dynamiccertificates.Listener) {
	files.AddListener(listener)
	s.background = append(s.background, task{what, func(ctx context.Context) error {
		files.Run(ctx, 1)
		return nil
	}})
}

// freshLinks hands out links with the credentials that the files hold now.
// Requests under way keep the connections they have.
type freshLinks struct {
	conf    nodelink.Config
	pki     PKI
	log     *slog.Logger
	current atomic.Pointer[nodelink.Finder]
}

// Find implements nodelink.Finder.
func (l *freshLinks) Find(ctx context.Context, node string) (*nodelink.Link, error) {
	return (*l.current.Load()).Find(ctx, node)
}

// Enqueue is called when a file changed.
func (l *freshLinks) Enqueue() {
	if err := l.renew(); err != nil {
		// Certificate and key are two files: between the two they do not match.
		l.log.Warn("reading credentials for node agents again; the old ones stay in use", "err", err)
	}
}

func (l *freshLinks) renew() error {
	settings := &tls.Config{MinVersion: tls.VersionTLS12}
	if l.pki.KubeletCA != "" {
		pem, err := os.ReadFile(l.pki.KubeletCA)
		if err != nil {
			return fmt.Errorf("reading CA of node agents: %w", err)
		}
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("reading CA of node agents %s: it holds no PEM certificate", l.pki.KubeletCA)
		}
	}
	if l.pki.KubeletClientCert != "" {
		pair, err := tls.LoadX509KeyPair(l.pki.KubeletClientCert, l.pki.KubeletClientKey)
		if err != nil {
			return fmt.Errorf("loading client certificate for node agents: %w", err)
		}
		settings.Certificates = []tls.Certificate{pair}
	}
	conf := l.conf
	conf.TLS = settings
	finder := nodelink.New(conf)
	l.current.Store(&finder)
	return nil
}
