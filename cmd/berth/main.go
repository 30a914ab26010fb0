// Command berth runs every node-side part of Kubernetes and, with `berth up`,
// a whole cluster on one host.
package main

import (
	"os"

	"github.com/berth-dev/berth/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args)) }
