package kube

// Version is the Kubernetes release whose API every part speaks, and who speaks
// it; it follows the k8s.io modules.
const Version = "v1.37.2+berth"
