// Package cli turns command lines into role configurations, one file per
// sub-command.
package cli

import "fmt"

// Main runs the command line and returns the process exit code.
func Main(args []string) int {
	fmt.Println("berth: no command yet")
	return 2
}
