// Command csihostpath is a CSI driver for tests: volumes are directories (or,
// in block mode, loop devices over files) of the machine it runs on. It serves
// all three CSI services, registers itself with a node agent, and, given a
// kubeconfig, also provisions: it makes PersistentVolumes for claims of its
// classes and deletes them again.
//
// Attaching and resizing are left to the upstream sidecars csi-attacher and
// csi-resizer, which connect to the same socket.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// options are what the command line says.
type options struct {
	name, nodeID, endpoint, state string
	// register is the socket by which a node agent finds the driver; "" for none.
	register string
	// kubeconfig makes it provision; "" leaves that to others.
	kubeconfig string
	// topology is a segment "key=value" of the node; "" for none.
	topology   string
	maxVolumes int64
	// mountGroup has the driver apply the pod's group itself.
	mountGroup bool
}

func main() {
	var o options
	flag.StringVar(&o.name, "name", "hostpath.csi.berth.dev", "name of the driver")
	flag.StringVar(&o.nodeID, "node-id", "", "id of this node; required")
	flag.StringVar(&o.endpoint, "endpoint", "", "socket to serve CSI on; required")
	flag.StringVar(&o.state, "state-dir", "", "where volumes are kept; required")
	flag.StringVar(&o.register, "register", "", "socket to make in a node agent's plugins_registry")
	flag.StringVar(&o.kubeconfig, "kubeconfig", "", "cluster to provision volumes for")
	flag.StringVar(&o.topology, "topology", "", "key=value that says where the node is")
	flag.Int64Var(&o.maxVolumes, "max-volumes", 0, "most volumes on the node, 0 for no limit")
	flag.BoolVar(&o.mountGroup, "mount-group", false, "apply a pod's fsGroup in the driver")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "csihostpath:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if o.nodeID == "" || o.endpoint == "" || o.state == "" {
		return fmt.Errorf("--node-id, --endpoint and --state-dir are required")
	}
	s, err := openStore(o.state)
	if err != nil {
		return err
	}
	d := &driver{options: o, store: s}
	if key, value, ok := strings.Cut(o.topology, "="); ok {
		d.segments = map[string]string{key: value}
	}
	ended := make(chan error, 3)
	server, err := serve(o.endpoint, ended, func(s *grpc.Server) {
		csi.RegisterIdentityServer(s, d)
		csi.RegisterControllerServer(s, d)
		csi.RegisterNodeServer(s, d)
	})
	if err != nil {
		return err
	}
	defer server.Stop()
	if o.register != "" {
		server, err := serve(o.register, ended, func(s *grpc.Server) { announce(s, o) })
		if err != nil {
			return err
		}
		defer server.Stop()
	}
	if o.kubeconfig != "" {
		go func() { ended <- provision(ctx, d) }()
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return err
	}
}

// serve listens on a socket, replacing one that a killed driver left.
func serve(path string, ended chan<- error, register func(*grpc.Server)) (*grpc.Server, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	s := grpc.NewServer()
	register(s)
	go func() {
		if err := s.Serve(l); err != nil {
			ended <- err
		}
	}()
	return s, nil
}
