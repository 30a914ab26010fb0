// Package snapshot keeps a whole cluster in one file and makes a data directory
// from it again: the store, the CAs and keys, the encryption keys and the
// cluster's settings.
//
// header.go, retention.go, schedule.go and plan.go decide and are pure; archive.go
// and seal.go write and read the file; files.go, store.go, exchange.go and
// restore.go are the shell around disk and etcd.
//
// A file is a header of HeaderSize bytes in clear text (what `berth snapshot ls`
// shows) and a payload: a tar, compressed by zstd, sealed by age unless the user
// chose otherwise. So it opens without berth:
//
//	tail -c +4097 FILE | age -d -i KEY | zstd -d | tar -x
package snapshot
