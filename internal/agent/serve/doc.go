// Package serve answers the agent's own API: pods, logs, exec, attach,
// port-forward, stats and metrics on port 10250 (TLS, every request
// authenticated and authorized by the API server), and /healthz on 10248.
//
// What is served where, and which permission it takes, is one table in
// routes.go.
package serve
