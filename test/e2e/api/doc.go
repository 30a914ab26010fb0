// Package api asks a cluster through the API server: kubectl, add-ons,
// certificates and the CIS benchmark.
package api
