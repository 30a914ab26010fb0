package kube

// SourceKey is where the API server records, in spec.extra of a
// CertificateSigningRequest, the address that the request came from. Requestors
// cannot write it.
const SourceKey = "berth.dev/source-address"
