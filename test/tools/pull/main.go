// Command pull has a container runtime pull images, once it answers.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: pull ENDPOINT IMAGE...")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "pull:", err)
		os.Exit(1)
	}
}

func run(endpoint string, images []string) error {
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for _, image := range images {
		request := &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: image, UserSpecifiedImage: image}}
		if _, err := runtimeapi.NewImageServiceClient(conn).PullImage(ctx, request, grpc.WaitForReady(true)); err != nil {
			return fmt.Errorf("%s: %w", image, err)
		}
		fmt.Println("pulled", image)
	}
	return nil
}
