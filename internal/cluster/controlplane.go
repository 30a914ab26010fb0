package cluster

import (
	"context"
	"fmt"
	"net"
	"strings"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/control/api"
	"github.com/berth-dev/berth/internal/control/store"
	"github.com/berth-dev/berth/internal/supervise"
)

// configureServer settles how the API server runs, while the store can still be
// seen to be new.
func (u *up) configureServer(context.Context) (err error) {
	if u.serverLog, err = u.logs.part("api"); err != nil {
		return err
	}
	u.logs.libraries(u.serverLog)
	u.server, err = u.serverOptions()
	return err
}

// startStore opens the embedded store or connects to an external one.
func (u *up) startStore(ctx context.Context) error {
	return u.clock.stage("store", func() (string, error) {
		cfg := store.Config{DataDir: u.Path("etcd"), Servers: u.EtcdServers, CAFile: u.EtcdCAFile, CertFile: u.EtcdCertFile,
			KeyFile: u.EtcdKeyFile,
			LogFile: u.Path("logs", "etcd.log"), Log: u.serverLog, SpaceChanged: u.tellSpace, NoSync: u.Ephemeral}
		var err error
		u.store, err = store.Start(ctx, cfg)
		return "", err
	})
}

// startAPI runs the API server and makes the cluster's own client.
func (u *up) startAPI(ctx context.Context) error {
	err := u.clock.stage("api", func() (string, error) {
		f := u.files
		srv, err := api.New(api.Config{
			Store: u.store, Port: u.Ports.API, AdvertiseAddress: net.ParseIP(u.NodeIP), ServiceCIDRs: strings.Split(u.ServiceCIDR, ","),
			Log: u.serverLog, Options: u.server, LocalAgent: u.localAgent(),
			PKI: api.PKI{
				ClientCA: f.CA.Cert, ServingCert: f.API.Cert, ServingKey: f.API.Key,
				ServiceAccountKey: f.ServiceAccountKey, ServiceAccountPublicKeys: []string{f.ServiceAccountPub},
				ServiceAccountIssuer: "https://kubernetes.default.svc." + u.ClusterDomain,
				KubeletCA:            f.AgentTrust, KubeletClientCert: f.KubeletClient.Cert, KubeletClientKey: f.KubeletClient.Key,
				FrontProxyCA: f.FrontProxyCA.Cert, FrontProxyCert: f.FrontProxyClient.Cert, FrontProxyKey: f.FrontProxyClient.Key,
			},
		})
		if err != nil {
			return "", err
		}
		u.api = srv
		u.serverChoices.Store(u.server)
		ended := make(chan error, 1)
		// A server runs once: when it fails, the cluster ends with its error.
		u.parts.Start(supervise.Part{Name: "api server", Restart: supervise.Never, Run: func(ctx context.Context) error {
			err := srv.Run(ctx)
			ended <- err
			return err
		}})
		select {
		case <-srv.Ready():
		case err := <-ended:
			return "", fmt.Errorf("the API server ended at start: %w", err)
		case <-ctx.Done():
			return "", ctx.Err()
		}
		return fmt.Sprintf("https://%s:%d", u.NodeIP, u.Ports.API), nil
	})
	if err != nil {
		return err
	}
	u.admin = srvConfig(u.api)
	if u.client, err = kubernetes.NewForConfig(u.admin); err != nil {
		return fmt.Errorf("making the cluster's own client: %w", err)
	}
	return nil
}

// srvConfig is the loopback client without client-side limits: the parts of
// one process do not wait for each other.
func srvConfig(s *api.Server) *rest.Config {
	cfg := rest.CopyConfig(s.LoopbackConfig())
	cfg.QPS, cfg.Burst = -1, 0
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return cfg
}

// externalEtcd is an etcd that is used instead of the embedded store, if there
// are servers of it.
type externalEtcd struct {
	EtcdServers                           []string
	EtcdCAFile, EtcdCertFile, EtcdKeyFile string
}
