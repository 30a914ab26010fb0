// Package stats measures the node, its pods and their containers when
// someone asks: from cgroup files, and from the runtime for what only it
// knows (writable layers, the image file system).
//
// Nothing here runs on a period. Reading cgroups is cheap enough for each
// request; what touches disks is read in the background after a request found
// it old, and the request is answered with what is known.
package stats
