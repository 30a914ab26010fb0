package clustermodel

import "time"

// Host is a node's own side: a host and the node agent on it. Faults are
// counted, since they may overlap. The zero Host works.
type Host struct {
	// Off: no power. Cut: no way to the API. Paused: the agent hangs. NotReady: it
	// says so of itself.
	Off, Cut, Paused, NotReady int
	// Booted is when the agent began to work after the last boot.
	Booted time.Duration
	// RenewEvery is the interval of lease renewals while a fault slows them down, 0
	// for the usual one.
	RenewEvery time.Duration
	// Skew is how far its clock is ahead.
	Skew time.Duration
}

// Works says whether the agent does its job.
func (h *Host) Works(now time.Duration) bool { return h.Off == 0 && h.Paused == 0 && now >= h.Booted }

// Reaches says whether the API hears the agent.
func (h *Host) Reaches(now time.Duration) bool { return h.Works(now) && h.Cut == 0 }

// Faulty says that some fault has not ended.
func (h *Host) Faulty() bool { return h.Off+h.Cut+h.Paused+h.NotReady > 0 || h.RenewEvery > 0 }

// Heal ends all faults.
func (h *Host) Heal() { h.Off, h.Cut, h.Paused, h.NotReady, h.RenewEvery = 0, 0, 0, 0, 0 }

// Alive says that the host has power.
func (h *Host) Alive() bool { return h.Off == 0 }

// Toggle begins a fault that there is not, and ends one that there is.
func Toggle(fault *int) { Set(fault, *fault == 0) }

// Set makes a fault be there or not.
func Set(fault *int, there bool) {
	*fault = 0
	if there {
		*fault = 1
	}
}

// Lease is what the API holds of a node's Lease.
type Lease struct {
	Renewed time.Time // renewTime, by the node's clock
	Written time.Time // when the API took it, by the API's clock; zero if it does not say
	Version uint64    // its resourceVersion
	Lasts   time.Duration
}
