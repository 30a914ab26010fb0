// Package config reads the agent's configuration: KubeletConfiguration
// v1beta1 from a file, a drop-in directory and flags, strictly, and tells for
// every field whether berth honours it.
//
// A field is never silently ignored. Each has a row in fields.go that says who
// honours it; one that berth does not support is refused by name unless it is
// left at its default.
package config
