// Package store gives the API server its database: an etcd server inside this
// process, or a client of an external etcd cluster.
package store

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	nooptrace "go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"k8s.io/apiserver/pkg/storage/storagebackend"
)

// dialTimeout bounds the first contact with an external etcd cluster; a
// cluster that is down is reported instead of waited for.
const dialTimeout = 10 * time.Second

// Config says where the data is. With Servers empty an etcd server runs inside
// this process on DataDir; otherwise the named servers are used and DataDir is
// ignored.
type Config struct {
	// DataDir is the directory of the embedded server. It is created with mode
	// 0700; one process at a time may use it.
	DataDir string
	// Servers are client URLs of an external etcd cluster.
	Servers []string
	// CAFile, CertFile and KeyFile are PEM files for TLS to Servers. CertFile
	// and KeyFile go together.
	CAFile, CertFile, KeyFile string
	// LogFile receives the embedded server's own log (JSON lines). Empty means
	// etcd.log inside DataDir.
	LogFile string
	// Quota is the size the embedded database may have, in bytes; 0 is DefaultQuota.
	Quota int64
	// SpaceChanged is called when the embedded database gets short of room, and
	// when it no longer is. It may be nil.
	SpaceChanged func(Usage)
	Log          *slog.Logger
	// NoSync does not wait for the disk: writes that were acknowledged can be
	// lost with the host, not with the process. For data that nobody will miss.
	NoSync bool

	// electionTimeout is changed by tests; 0 is election.
	electionTimeout time.Duration
}

// Store is a running database connection. It is safe for concurrent use.
type Store struct {
	client    *clientv3.Client
	embedded  *embedded // nil for an external cluster
	transport storagebackend.TransportConfig
}

// Start opens the store and returns once it accepts writes. Cancelling ctx
// aborts only the start; the running store ends with Close.
func Start(ctx context.Context, cfg Config) (*Store, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if len(cfg.Servers) > 0 {
		return connect(ctx, cfg)
	}
	if cfg.DataDir == "" {
		return nil, errors.New("starting store: neither a data directory nor etcd servers are given")
	}
	emb, err := startEmbedded(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("starting embedded etcd in %s: %w", cfg.DataDir, err)
	}
	return &Store{
		client:   emb.client(),
		embedded: emb,
		transport: storagebackend.TransportConfig{
			ServerList:     []string{emb.clientURL},
			TracerProvider: nooptrace.NewTracerProvider(),
		},
	}, nil
}

// connect dials an external cluster and proves that it answers.
func connect(ctx context.Context, cfg Config) (*Store, error) {
	tlsConfig, err := clientTLS(cfg)
	if err != nil {
		return nil, err
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            cfg.Servers,
		TLS:                  tlsConfig,
		DialTimeout:          dialTimeout,
		DialKeepAliveTime:    30 * time.Second,
		DialKeepAliveTimeout: 10 * time.Second,
		Logger:               zap.NewNop(),
		DialOptions:          []grpc.DialOption{grpc.WithDisableServiceConfig()},
	})
	if err != nil {
		return nil, fmt.Errorf("connecting to etcd servers %v: %w", cfg.Servers, err)
	}
	s := &Store{
		client: client,
		transport: storagebackend.TransportConfig{
			ServerList:     cfg.Servers,
			TrustedCAFile:  cfg.CAFile,
			CertFile:       cfg.CertFile,
			KeyFile:        cfg.KeyFile,
			TracerProvider: nooptrace.NewTracerProvider(),
		},
	}
	probe, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if err := s.Health(probe); err != nil {
		client.Close()
		return nil, fmt.Errorf("connecting to etcd servers %v: %w", cfg.Servers, err)
	}
	return s, nil
}

func clientTLS(cfg Config) (*tls.Config, error) {
	if cfg.CAFile == "" && cfg.CertFile == "" && cfg.KeyFile == "" {
		return nil, nil
	}
	if (cfg.CertFile == "") != (cfg.KeyFile == "") {
		return nil, errors.New("reading etcd client certificate: certificate file and key file must be given together")
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.CAFile != "" {
		pem, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("reading etcd CA file: %w", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("reading etcd CA file %s: it holds no PEM certificate", cfg.CAFile)
		}
	}
	if cfg.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(cfg.CertFile, cfg.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("reading etcd client certificate %s: %w", cfg.CertFile, err)
		}
		out.Certificates = []tls.Certificate{pair}
	}
	return out, nil
}

// Client is the one connection everything in this process shares. For the
// embedded server it calls straight into it, without gRPC in between. The
// caller must not close it.
func (s *Store) Client() *clientv3.Client { return s.client }

// Transport describes the store to code that dials for itself. For the
// embedded server it names the unix socket.
func (s *Store) Transport() storagebackend.TransportConfig { return s.transport }

// Embedded reports whether the database runs inside this process.
func (s *Store) Embedded() bool { return s.embedded != nil }

// Health reads one key through consensus, so an error means that the store
// cannot serve consistent requests now.
func (s *Store) Health(ctx context.Context) error {
	if err := s.Failure(); err != nil {
		return err
	}
	if _, err := s.client.Get(ctx, "/registry/health", clientv3.WithCountOnly()); err != nil {
		return fmt.Errorf("reading from etcd: %w", err)
	}
	return nil
}

// Usage is how much of its room an embedded database takes; zero for an external cluster.
func (s *Store) Usage() Usage {
	if s.embedded == nil {
		return Usage{}
	}
	return s.embedded.space.usage()
}

// HasRoom is an error if the database takes no new objects.
func (s *Store) HasRoom() error {
	if u := s.Usage(); u.Full() {
		return &FullError{Usage: u}
	}
	return nil
}

// Stopped is closed when an embedded server ends, by Close or by itself. For
// an external cluster it never closes.
func (s *Store) Stopped() <-chan struct{} {
	if s.embedded == nil {
		return nil
	}
	return s.embedded.stopped()
}

// Close ends the connection and the embedded server. Acknowledged writes are
// on disk already; Close only makes the end orderly. Calling it twice is fine.
func (s *Store) Close() {
	s.client.Close()
	if s.embedded != nil {
		s.embedded.close()
	}
}
