package cluster

import (
	"context"
	"fmt"
	"os"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/internal/kube"
	"github.com/berth-dev/berth/internal/manifests"
	"github.com/berth-dev/berth/internal/supervise"
)

// NoManifests is the --manifests-dir of a server that applies none.
const NoManifests = "none"

// manifestsUser applies manifests. It is a user that no credential is made for:
// a service account would let anybody who may make tokens in its namespace be it.
const manifestsUser = "berth:manifests"

// manifestsDir holds files to apply, "" for none.
func (c *Config) manifestsDir() string {
	switch c.ManifestsDir {
	case "":
		return c.Path("manifests")
	case NoManifests:
		return ""
	}
	return c.ManifestsDir
}

// manifestsPart applies the directory of manifests on the server that leads.
func (u *up) manifestsPart() ([]supervise.Part, error) {
	dir := u.manifestsDir()
	if dir == "" {
		return nil, nil
	}
	// Files in it are applied with all rights: only root may put them there.
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("--manifests-dir: %w", err)
	}
	log, err := u.logs.part("manifests")
	if err != nil {
		return nil, err
	}
	u.manifests, err = manifests.New(manifests.Config{Dir: dir, Node: u.NodeName, Log: log,
		Client: u.api.As(manifestsUser, user.AllAuthenticated),
		Events: func(client kubernetes.Interface) record.EventRecorder {
			return kube.Events(u.parts.Context(), client)("berth-manifests")
		}})
	if err != nil {
		return nil, err
	}
	return []supervise.Part{{Name: "manifests", Restart: supervise.Always, Run: func(ctx context.Context) error {
		// A manifest may hold any kind, rules of RBAC among them, so its user must
		// hold every right: as anyone who may write the directory, root of a server,
		// who owns the keys of the cluster's CA anyway.
		err := bind(ctx, u.client, manifestsUser, "cluster-admin",
			rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: manifestsUser})
		if err != nil {
			return fmt.Errorf("granting the manifests their rights: %w", err)
		}
		return u.manifests.Run(ctx)
	}}}, nil
}
