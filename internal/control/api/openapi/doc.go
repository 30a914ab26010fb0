// Package openapi holds the generated OpenAPI definitions of every type the
// server serves. It is big; only the server assembly imports it.
package openapi

//go:generate ../../../../hack/generate.sh openapi
