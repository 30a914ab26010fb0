// Package storage mounts volumes: those that the agent fills, those of CSI
// drivers and local ones.
package storage
