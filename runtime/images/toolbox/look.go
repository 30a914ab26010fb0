package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// look tells of each path, links followed, one line: `PATH tmpfs|disk MODE UID
// GID CONTENTS`; a directory has no contents. What cannot be looked at says why.
func look(_ context.Context, s streams, args []string) error {
	var failed error
	for _, a := range args {
		st, err := os.Stat(s.path(a))
		if err != nil {
			fmt.Fprintf(s.out, "%s: %v\n", a, err)
			failed = exit(1)
			continue
		}
		var fs syscall.Statfs_t
		if err := syscall.Statfs(s.path(a), &fs); err != nil {
			return err
		}
		kind := "disk"
		if fs.Type == 0x01021994 { // TMPFS_MAGIC of linux/magic.h
			kind = "tmpfs"
		}
		sys := st.Sys().(*syscall.Stat_t)
		text := ""
		if st.Mode().IsRegular() {
			data, err := os.ReadFile(s.path(a))
			if err != nil {
				text = err.Error()
			} else {
				text = strings.ReplaceAll(string(data), "\n", "|")
			}
		}
		fmt.Fprintf(s.out, "%s %s %s %d %d %s\n", a, kind, st.Mode(), sys.Uid, sys.Gid, text)
	}
	return failed
}

// put writes `put MODE FILE TEXT`, the mode in octal whatever the umask.
func put(_ context.Context, s streams, args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("want MODE FILE TEXT")
	}
	mode, err := strconv.ParseUint(args[0], 8, 32)
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.path(args[1]), []byte(args[2]), 0o600); err != nil {
		return err
	}
	return os.Chmod(s.path(args[1]), os.FileMode(mode))
}

// ln makes a link `ln -s TARGET NAME`.
func ln(_ context.Context, s streams, args []string) error {
	if len(args) != 3 || args[0] != "-s" {
		return fmt.Errorf("want -s TARGET NAME")
	}
	return os.Symlink(args[1], s.path(args[2]))
}

// stay ends only when it is killed.
func stay(context.Context, streams, []string) error {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
	for {
		time.Sleep(time.Hour)
	}
}
