// Package faults kills, fills, stops and shuts down, and looks at what goes on
// and at what is left behind.
package faults
