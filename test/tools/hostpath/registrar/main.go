// Command registrar tells a node agent of a CSI driver that does not do so
// itself: what upstream's node-driver-registrar is for.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

type registrar struct{ name, endpoint string }

func (r registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: r.name, Endpoint: r.endpoint, SupportedVersions: []string{"1.0.0"}},
		nil
}

func (r registrar) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (
	*registration.RegistrationStatusResponse, error) {
	fmt.Println("registered:", s.PluginRegistered, s.Error)
	return &registration.RegistrationStatusResponse{}, nil
}

func main() {
	var r registrar
	flag.StringVar(&r.name, "name", "hostpath.csi.k8s.io", "name of the driver")
	flag.StringVar(&r.endpoint, "endpoint", "", "socket of the driver")
	socket := flag.String("register", "", "socket to make in a node agent's plugins_registry")
	flag.Parse()
	if err := run(r, *socket); err != nil {
		fmt.Fprintln(os.Stderr, "registrar:", err)
		os.Exit(1)
	}
}

func run(r registrar, socket string) error {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	registration.RegisterRegistrationServer(s, r)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	context.AfterFunc(ctx, s.Stop)
	return s.Serve(l)
}
