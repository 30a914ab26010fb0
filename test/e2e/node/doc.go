// Package node looks at pods and at the node below them: containers, images, cgroups,
// devices, statistics.
package node
