package cli

import (
	"fmt"
	"os"
	"path/filepath"

	_ "k8s.io/client-go/plugin/pkg/client/auth" // the credential plugins users expect
	"k8s.io/component-base/cli"
	kubectlcmd "k8s.io/kubectl/pkg/cmd"
)

// kubectl runs the real kubectl. Unless the user names another cluster by
// $KUBECONFIG or a flag, it talks to the one in the data directory.
func kubectl(args []string) int {
	if os.Getenv("KUBECONFIG") == "" {
		file := filepath.Join(defaultDataDir(), "admin.kubeconfig")
		if _, err := os.Stat(file); err == nil {
			if err := os.Setenv("KUBECONFIG", file); err != nil {
				fmt.Fprintln(os.Stderr, "berth:", err)
				return 1
			}
		}
	}
	os.Args = append([]string{"kubectl"}, args...)
	cmd := kubectlcmd.NewDefaultKubectlCommand()
	cmd.SetArgs(args)
	return cli.Run(cmd)
}
