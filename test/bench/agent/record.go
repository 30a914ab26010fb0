package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// started is what an agent asked of the runtime to start one pod.
type started struct {
	sandbox   *runtimeapi.RunPodSandboxRequest
	container *runtimeapi.CreateContainerRequest
}

// recorder stands between an agent and a runtime, passes every call on and
// keeps the last requests that start a pod.
type recorder struct {
	server *grpc.Server
	next   *grpc.ClientConn

	mu   sync.Mutex
	seen started
}

// frame is a message as it came: passed on, not read.
type frame []byte

// raw is a codec that leaves frames alone.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) ([]byte, error) {
	if f, ok := v.(*frame); ok {
		return *f, nil
	}
	return nil, fmt.Errorf("marshalling %T: only frames pass here", v)
}

func (raw) Unmarshal(data []byte, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return fmt.Errorf("unmarshalling %T: only frames pass here", v)
	}
	*f = slices.Clone(data)
	return nil
}

// record serves a recorder at a socket until it is stopped.
func record(socket string, next *grpc.ClientConn) (*recorder, error) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	r := &recorder{next: next}
	//nolint:staticcheck // the only way to serve methods without knowing their types
	r.server = grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.UnknownServiceHandler(r.pass), grpc.MaxRecvMsgSize(16<<20))
	go r.server.Serve(l) //nolint:errcheck // it ends when it is stopped
	return r, nil
}

// pass hands one call on.
func (r *recorder) pass(_ any, in grpc.ServerStream) error {
	method, _ := grpc.Method(in.Context())
	ctx, cancel := context.WithCancel(in.Context())
	defer cancel()
	out, err := r.next.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method, grpc.ForceCodec(raw{}))
	if err != nil {
		return err
	}
	var f frame // CRI calls have one request each
	if err := in.RecvMsg(&f); err != nil {
		return err
	}
	if err := r.keep(method, f); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if err := errors.Join(out.SendMsg(&f), out.CloseSend()); err != nil {
		return err
	}
	for {
		var answer frame
		if err := out.RecvMsg(&answer); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := in.SendMsg(&answer); err != nil {
			return err
		}
	}
}

func (r *recorder) keep(method string, f frame) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case strings.HasSuffix(method, "/RunPodSandbox"):
		r.seen.sandbox = &runtimeapi.RunPodSandboxRequest{}
		return proto.Unmarshal(f, r.seen.sandbox)
	case strings.HasSuffix(method, "/CreateContainer"):
		r.seen.container = &runtimeapi.CreateContainerRequest{}
		return proto.Unmarshal(f, r.seen.container)
	}
	return nil
}
