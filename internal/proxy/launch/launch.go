// Package launch turns a configuration into a running proxy: it prepares the
// host, gets a client, and watches no more than the proxy needs.
package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/internal/proxy"
	"github.com/berth-dev/berth/internal/proxy/config"
)

// Run does what the flags ask for; mostly that is to run the proxy until ctx ends.
func Run(ctx context.Context, f *config.Flags, log *slog.Logger) error {
	c := &f.Config
	if f.WriteTo != "" {
		data, err := yaml.Marshal(c)
		if err != nil {
			return fmt.Errorf("printing the configuration: %w", err)
		}
		if err := os.WriteFile(f.WriteTo, data, 0o644); err != nil {
			return fmt.Errorf("writing --write-config-to: %w", err)
		}
		return nil
	}
	if f.Cleanup || f.CleanupKubeProxy {
		return cleanup(ctx, f, log)
	}
	if f.InitOnly {
		prepare(c, log, "/")
		return nil
	}
	name := c.HostnameOverride
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("reading the host name: %w", err)
		}
		name = strings.ToLower(strings.TrimSpace(host))
	}
	client, err := connect(f)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if f.File != "" {
		stop, err := watchFile(ctx, f.File, cancel)
		if err != nil {
			return err
		}
		defer stop()
	}
	tracer := &proxy.Tracer{}
	if f.Socket != "" {
		stop, err := tracer.Serve(f.Socket)
		if err != nil {
			return err
		}
		defer stop()
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	// Resyncs would only repeat what is known; configSyncPeriod is kept for
	// those who count on it.
	factory := informers.NewSharedInformerFactoryWithOptions(client, c.ConfigSyncPeriod.Duration,
		informers.WithTransform(newStripper().strip))
	nodes := coreinformers.NewFilteredNodeInformer(client, c.ConfigSyncPeriod.Duration, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", name).String()
	})
	limit(factory)
	go nodes.Run(ctx.Done())
	synced := make(chan struct{})
	trimmed := make(chan struct{})
	go func() {
		defer close(trimmed)
		releaseMemory(ctx, synced, log)
	}()
	err = RunIn(ctx, Process{
		NodeName: name, Instance: f.Instance, Client: client, Informers: factory, Nodes: nodes, Log: log, Metrics: registry, Tracer: tracer,
		Flags: f.All(), Synced: sync.OnceFunc(func() { close(synced) }),
	}, c)
	cancel(nil)
	<-trimmed
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// limit has the factory watch only the Services and slices that are proxied.
func limit(factory informers.SharedInformerFactory) {
	factory.InformerFor(&corev1.Service{}, func(c kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		return coreinformers.NewFilteredServiceInformer(c, metav1.NamespaceAll, resync, cache.Indexers{}, func(o *metav1.ListOptions) {
			o.LabelSelector = "!service.kubernetes.io/service-proxy-name"
			o.FieldSelector = fields.OneTermNotEqualSelector("spec.clusterIP", corev1.ClusterIPNone).String()
		})
	})
	factory.InformerFor(&discoveryv1.EndpointSlice{}, newSlices)
}

// connect makes a client from the kubeconfig, or from the pod's service account.
func connect(f *config.Flags) (kubernetes.Interface, error) {
	conn := f.Config.ClientConnection
	var rc *rest.Config
	var err error
	if conn.Kubeconfig == "" && f.Master == "" {
		if rc, err = rest.InClusterConfig(); err != nil {
			return nil, fmt.Errorf("finding the API server: neither --kubeconfig nor --master is given, and %w", err)
		}
	} else if rc, err = clientcmd.BuildConfigFromFlags(f.Master, conn.Kubeconfig); err != nil {
		return nil, fmt.Errorf("reading --kubeconfig %s: %w", conn.Kubeconfig, err)
	}
	rc.AcceptContentTypes, rc.ContentType, rc.QPS, rc.Burst = conn.AcceptContentTypes, conn.ContentType, conn.QPS, int(conn.Burst)
	rc.UserAgent = "berth-proxy"
	client, err := kubernetes.NewForConfig(rc)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	return client, nil
}

// watchFile ends the context when the file holds something else: who runs
// the proxy starts it again, as with kube-proxy.
func watchFile(ctx context.Context, path string, end context.CancelCauseFunc) (stop func(), err error) {
	was, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading --config: %w", err)
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watching --config: %w", err)
	}
	// The folder, since a mounted ConfigMap changes by a symbolic link.
	if err := w.Add(filepath.Dir(path)); err != nil {
		return nil, errors.Join(fmt.Errorf("watching --config: %w", err), w.Close())
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case _, ok := <-w.Events:
				if !ok {
					return
				}
			}
			// An empty file is one that is being written.
			if now, err := os.ReadFile(path); err == nil && len(now) > 0 && !bytes.Equal(now, was) {
				end(fmt.Errorf("the configuration %s has changed: the proxy must be started again", path))
				return
			}
		}
	}()
	return func() { w.Close(); <-done }, nil
}
