package store

import (
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
)

// rawClient passes by what keeps room back.
func rawClient(s *Store) *clientv3.Client { return v3client.New(s.embedded.etcd.Server) }
