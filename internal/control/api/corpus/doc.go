// Package corpus judges the built-in kinds by their mistakes: each field of
// valid objects is broken in every way that fits its type, and the answers
// (accepted, or the type and field of each cause) are kept in testdata, one
// file a group.
package corpus
