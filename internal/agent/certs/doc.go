// Package certs gets and renews the agent's certificates: the client
// certificate by TLS bootstrap and rotation, the serving certificate from
// files, from the API server, or self-signed.
package certs
