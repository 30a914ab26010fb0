// Package network connects: Services, the pod network, policies, DNS and both
// IP families.
package network
