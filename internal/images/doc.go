// Package images puts images into the containerd of a node from archives, lists
// and removes them: for `berth image` on the node itself and, as a part of the
// agent's API, for administrators elsewhere.
package images
