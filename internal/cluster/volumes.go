package cluster

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/berth-dev/berth/internal/localvolume"
)

// NoVolumes is the --volumes-dir of a node without local volumes.
const NoVolumes = "none"

// volumesDir holds the node's local volumes, "" for none.
func (c *Config) volumesDir() string {
	switch {
	case !c.Role.node() || c.VolumesDir == NoVolumes:
		return ""
	case c.VolumesDir == "":
		return c.Path("volumes")
	}
	return c.VolumesDir
}

// startVolumes runs the driver of local volumes beside the agent, which finds
// it as it finds any other CSI driver.
func (u *up) startVolumes(context.Context) error {
	dir := u.volumesDir()
	if dir == "" {
		return nil
	}
	log, err := u.logs.part("volumes")
	if err != nil {
		return err
	}
	u.volumes, err = localvolume.Open(localvolume.Config{Dir: dir, Node: u.NodeName, Version: KubernetesVersion, Log: log})
	if err != nil {
		return fmt.Errorf("--volumes-dir: %w", err)
	}
	u.keep("local volumes", func(ctx context.Context) error {
		return u.volumes.Run(ctx, filepath.Join(u.Layout().SocketDir(), "volumes.sock"), u.Path("agent", "plugins_registry"))
	})
	return nil
}
