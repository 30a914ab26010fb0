package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"
)

var tools map[string]tool

func init() {
	tools = map[string]tool{
		"cat": cat, "ls": ls, "env": env, "id": id, "hostname": hostname, "sleep": sleep, "seq": seq,
		"mkdir": mkdir, "rm": rm, "touch": touch, "stat": stat, "grep": grep, "head": head, "tee": tee,
		"wget": wget, "nslookup": nslookup, "nc": nc, "serve": serve, "hog": hog, "fill": fill, "date": date,
		"readlink": readlink, "mounts": mounts, "pause": pause, "look": look, "put": put, "ln": ln, "stay": stay,
	}
}

func (s streams) path(p string) string {
	if filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(s.dir, p)
}

func cat(_ context.Context, s streams, args []string) error {
	if len(args) == 0 {
		_, err := io.Copy(s.out, s.in)
		return err
	}
	for _, a := range args {
		f, err := os.Open(s.path(a))
		if err != nil {
			return err
		}
		_, err = io.Copy(s.out, f)
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func ls(_ context.Context, s streams, args []string) error {
	long := false
	if len(args) > 0 && strings.HasPrefix(args[0], "-") {
		long, args = strings.Contains(args[0], "l"), args[1:]
	}
	if len(args) == 0 {
		args = []string{"."}
	}
	for _, a := range args {
		entries, err := os.ReadDir(s.path(a))
		if err != nil {
			if st, serr := os.Lstat(s.path(a)); serr == nil {
				line(s.out, long, a, st)
				continue
			}
			return err
		}
		for _, e := range entries {
			st, err := e.Info()
			if err != nil {
				continue
			}
			line(s.out, long, e.Name(), st)
		}
	}
	return nil
}

func line(w io.Writer, long bool, name string, st os.FileInfo) {
	if !long {
		fmt.Fprintln(w, name)
		return
	}
	sys := st.Sys().(*syscall.Stat_t)
	fmt.Fprintf(w, "%s %d %d %d %s\n", st.Mode(), sys.Uid, sys.Gid, st.Size(), name)
}

func env(_ context.Context, s streams, _ []string) error {
	all := append([]string(nil), s.env...)
	sort.Strings(all)
	for _, e := range all {
		fmt.Fprintln(s.out, e)
	}
	return nil
}

func id(_ context.Context, s streams, _ []string) error {
	groups, _ := os.Getgroups()
	sort.Ints(groups)
	fmt.Fprintf(s.out, "uid=%d gid=%d groups=%v\n", os.Getuid(), os.Getgid(), groups)
	return nil
}

func hostname(_ context.Context, s streams, _ []string) error {
	h, err := os.Hostname()
	fmt.Fprintln(s.out, h)
	return err
}

func sleep(ctx context.Context, _ streams, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("want one argument: seconds, a duration or \"infinity\"")
	}
	if args[0] == "infinity" {
		ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		<-ctx.Done()
		return exit(143)
	}
	d, err := time.ParseDuration(args[0])
	if err != nil {
		secs, ferr := strconv.ParseFloat(args[0], 64)
		if ferr != nil {
			return err
		}
		d = time.Duration(secs * float64(time.Second))
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return exit(143)
	}
}

// pause waits for a signal, as an idle workload does.
func pause(ctx context.Context, s streams, _ []string) error {
	return sleep(ctx, s, []string{"infinity"})
}

func seq(_ context.Context, s streams, args []string) error {
	from, to := 1, 0
	var err error
	switch len(args) {
	case 1:
		to, err = strconv.Atoi(args[0])
	case 2:
		if from, err = strconv.Atoi(args[0]); err == nil {
			to, err = strconv.Atoi(args[1])
		}
	default:
		return fmt.Errorf("want one or two numbers")
	}
	if err != nil {
		return err
	}
	w := bufio.NewWriter(s.out)
	for i := from; i <= to; i++ {
		fmt.Fprintln(w, i)
	}
	return w.Flush()
}

func mkdir(_ context.Context, s streams, args []string) error {
	for _, a := range args {
		if a == "-p" {
			continue
		}
		if err := os.MkdirAll(s.path(a), 0o777); err != nil {
			return err
		}
	}
	return nil
}

func rm(_ context.Context, s streams, args []string) error {
	for _, a := range args {
		if strings.HasPrefix(a, "-") {
			continue
		}
		if err := os.RemoveAll(s.path(a)); err != nil {
			return err
		}
	}
	return nil
}

func touch(_ context.Context, s streams, args []string) error {
	for _, a := range args {
		f, err := os.OpenFile(s.path(a), os.O_CREATE|os.O_WRONLY, 0o666)
		if err != nil {
			return err
		}
		f.Close()
	}
	return nil
}

func stat(_ context.Context, s streams, args []string) error {
	for _, a := range args {
		st, err := os.Lstat(s.path(a))
		if err != nil {
			return err
		}
		line(s.out, true, a, st)
	}
	return nil
}

func readlink(_ context.Context, s streams, args []string) error {
	for _, a := range args {
		t, err := os.Readlink(s.path(a))
		if err != nil {
			return err
		}
		fmt.Fprintln(s.out, t)
	}
	return nil
}

func mounts(_ context.Context, s streams, _ []string) error {
	return cat(context.Background(), s, []string{"/proc/self/mountinfo"})
}

func grep(_ context.Context, s streams, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("want a text and files")
	}
	var buf strings.Builder
	if err := cat(context.Background(), streams{s.in, &buf, s.err, s.dir, s.env}, args[1:]); err != nil {
		return err
	}
	found := false
	for l := range strings.Lines(buf.String()) {
		if strings.Contains(l, args[0]) {
			found = true
			fmt.Fprint(s.out, l)
		}
	}
	if !found {
		return exit(1)
	}
	return nil
}

func head(_ context.Context, s streams, args []string) error {
	n := 10
	if len(args) == 2 && args[0] == "-n" {
		n, _ = strconv.Atoi(args[1])
	}
	sc := bufio.NewScanner(s.in)
	for i := 0; i < n && sc.Scan(); i++ {
		fmt.Fprintln(s.out, sc.Text())
	}
	return sc.Err()
}

func tee(_ context.Context, s streams, args []string) error {
	ws := []io.Writer{s.out}
	for _, a := range args {
		f, err := os.Create(s.path(a))
		if err != nil {
			return err
		}
		defer f.Close()
		ws = append(ws, f)
	}
	_, err := io.Copy(io.MultiWriter(ws...), s.in)
	return err
}

func date(_ context.Context, s streams, _ []string) error {
	fmt.Fprintln(s.out, time.Now().UTC().Format(time.RFC3339Nano))
	return nil
}

// hog allocates `hog MIB [MIB-PER-SECOND]` of touched memory and holds it.
func hog(ctx context.Context, s streams, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("want MIB [MIB-PER-SECOND]")
	}
	total, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	rate := 0
	if len(args) > 1 {
		if rate, err = strconv.Atoi(args[1]); err != nil {
			return err
		}
	}
	var held [][]byte
	for i := 0; i < total; i++ {
		b := make([]byte, 1<<20)
		for j := 0; j < len(b); j += 4096 {
			b[j] = byte(i)
		}
		held = append(held, b)
		if rate > 0 {
			time.Sleep(time.Second / time.Duration(rate))
		}
	}
	fmt.Fprintf(s.out, "holding %d MiB\n", len(held))
	return pause(ctx, s, nil)
}

// fill writes `fill FILE MIB` of zeroes.
func fill(_ context.Context, s streams, args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("want FILE MIB")
	}
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	f, err := os.Create(s.path(args[0]))
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, 1<<20)
	for range n {
		if _, err := f.Write(buf); err != nil {
			return err
		}
	}
	return nil
}

func wget(ctx context.Context, s streams, args []string) error {
	timeout := 5 * time.Second
	url := ""
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "-T" && i+1 < len(args):
			i++
			secs, err := strconv.Atoi(args[i])
			if err != nil {
				return err
			}
			timeout = time.Duration(secs) * time.Second
		case strings.HasPrefix(a, "-"):
		default:
			url = a
		}
	}
	if url == "" || url == "-" {
		return fmt.Errorf("want a URL")
	}
	if !strings.Contains(url, "://") {
		url = "http://" + url
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(s.out, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode >= 400 {
		return fmt.Errorf("server answered %s", resp.Status)
	}
	return nil
}

func nslookup(ctx context.Context, s streams, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("want a name")
	}
	r := net.DefaultResolver
	if len(args) > 1 {
		server := net.JoinHostPort(args[1], "53")
		r = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, server)
		}}
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	addrs, err := r.LookupHost(ctx, args[0])
	if err != nil {
		return err
	}
	for _, a := range addrs {
		fmt.Fprintln(s.out, a)
	}
	return nil
}

// nc connects `nc HOST PORT` (or `nc -u HOST PORT`), sends standard input and
// prints the answer.
func nc(_ context.Context, s streams, args []string) error {
	network := "tcp"
	if len(args) > 0 && args[0] == "-u" {
		network, args = "udp", args[1:]
	}
	if len(args) != 2 {
		return fmt.Errorf("want [-u] HOST PORT")
	}
	c, err := net.DialTimeout(network, net.JoinHostPort(args[0], args[1]), 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	go func() {
		io.Copy(c, s.in)
		if t, ok := c.(*net.TCPConn); ok {
			t.CloseWrite()
		}
	}()
	c.SetReadDeadline(time.Now().Add(5 * time.Second))
	_, err = io.Copy(s.out, c)
	return err
}
