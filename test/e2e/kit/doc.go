// Package kit is what end-to-end tests of several folders share: clusters of
// their own (Cluster), several hosts on one (Hosts), a node's parts one by one
// (Rig), a namespace for each subtest (Namespace), and what looks at pods,
// processes, cgroups and at what a cluster leaves behind. What one folder alone
// needs stays in that folder.
package kit
