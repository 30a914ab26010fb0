package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// maxOutput bounds what is kept of a probe's output.
const maxOutput = 10 << 10

// userAgent is how probes present themselves.
const userAgent = "kube-probe/1.37"

// verdict is how one check ended.
type verdict int

// The verdicts. Errored means that the check could not be made; it counts as
// nothing.
const (
	Errored verdict = iota
	Success
	Failure
	// Warned is a success that is reported all the same.
	Warned
)

// exec runs a command in a container; code is its exit code.
type exec func(ctx context.Context, containerID string, cmd []string, timeout time.Duration) (output []byte, code int, err error)

// subject is what one check is made on.
type subject struct {
	c           *v1.Container
	containerID string
	podIP       string
	probe       *v1.Probe
}

// run makes one check.
func run(ctx context.Context, exec exec, s subject) (verdict, string, error) {
	timeout := time.Duration(max(s.probe.TimeoutSeconds, 1)) * time.Second
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	switch h := s.probe.ProbeHandler; {
	case h.Exec != nil:
		return runExec(ctx, exec, s, h.Exec.Command, timeout)
	case h.HTTPGet != nil:
		return runHTTP(ctx, s, h.HTTPGet)
	case h.TCPSocket != nil:
		return runTCP(ctx, s, h.TCPSocket)
	case h.GRPC != nil:
		return runGRPC(ctx, s, h.GRPC, timeout)
	}
	return Errored, "", fmt.Errorf("container %q: the probe has no handler, allowed are exec, httpGet, tcpSocket and grpc", s.c.Name)
}

func runExec(ctx context.Context, exec exec, s subject, command []string, timeout time.Duration) (verdict, string, error) {
	out, code, err := exec(ctx, s.containerID, expand(command, s.c.Env), timeout)
	text := cut(out)
	switch {
	case err == nil && code == 0:
		return Success, text, nil
	case err == nil:
		return Failure, text, nil
	case errors.Is(err, context.DeadlineExceeded), status.Code(err) == codes.DeadlineExceeded, ctx.Err() != nil:
		return Failure, fmt.Sprintf("command timed out: %q timed out after %s", strings.Join(command, " "), timeout), nil
	}
	return Errored, text, err
}

// expand replaces $(NAME) by literal values of the container's environment.
func expand(command []string, env []v1.EnvVar) []string {
	values := map[string]string{}
	for _, e := range env {
		if e.ValueFrom == nil {
			values[e.Name] = e.Value
		}
	}
	out := make([]string, len(command))
	for i, arg := range command {
		var b strings.Builder
		for len(arg) > 0 {
			at := strings.IndexByte(arg, '$')
			if at < 0 || at+1 >= len(arg) {
				break
			}
			b.WriteString(arg[:at])
			switch end := strings.IndexByte(arg[at:], ')'); {
			case arg[at+1] == '$':
				b.WriteByte('$')
				arg = arg[at+2:]
			case arg[at+1] == '(' && end > 0:
				name := arg[at+2 : at+end]
				if v, ok := values[name]; ok {
					b.WriteString(v)
				} else {
					b.WriteString(arg[at : at+end+1])
				}
				arg = arg[at+end+1:]
			default:
				b.WriteByte('$')
				arg = arg[at+1:]
			}
		}
		b.WriteString(arg)
		out[i] = b.String()
	}
	return out
}

func cut(b []byte) string { return string(b[:min(len(b), maxOutput)]) }

// containerPort resolves a port by number or by the name of a container port.
func containerPort(c *v1.Container, port intstr.IntOrString) (int, error) {
	n := port.IntValue()
	if port.Type == intstr.String {
		n = 0
		for _, p := range c.Ports {
			if p.Name == port.StrVal {
				n = int(p.ContainerPort)
			}
		}
		if v, err := strconv.Atoi(port.StrVal); n == 0 && err == nil {
			n = v
		}
	}
	if n <= 0 || n > 65535 {
		return 0, fmt.Errorf("container %q has no port %q, and it is not a number from 1 to 65535", c.Name, port.String())
	}
	return n, nil
}

// dialer closes probe connections without leaving them in TIME-WAIT for long.
func dialer() *net.Dialer {
	return &net.Dialer{KeepAlive: -1, Control: func(_, _ string, c syscall.RawConn) error {
		var serr error
		if err := c.Control(func(fd uintptr) {
			serr = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 1})
		}); err != nil {
			return err
		}
		return serr
	}}
}

func runTCP(ctx context.Context, s subject, h *v1.TCPSocketAction) (verdict, string, error) {
	port, err := containerPort(s.c, h.Port)
	if err != nil {
		return Errored, "", err
	}
	host := h.Host
	if host == "" {
		host = s.podIP
	}
	conn, err := dialer().DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return Failure, err.Error(), nil
	}
	_ = conn.Close()
	return Success, "", nil
}

// request makes the HTTP request that a handler describes.
func request(ctx context.Context, c *v1.Container, podIP string, h *v1.HTTPGetAction, agent string) (*http.Request, error) {
	port, err := containerPort(c, h.Port)
	if err != nil {
		return nil, err
	}
	host := h.Host
	if host == "" {
		host = podIP
	}
	u, err := url.Parse(h.Path)
	if err != nil {
		u = &url.URL{Path: h.Path}
	}
	u.Scheme, u.Host = strings.ToLower(string(h.Scheme)), net.JoinHostPort(host, strconv.Itoa(port))
	if u.Scheme == "" {
		u.Scheme = "http"
	}
	if !strings.HasPrefix(u.Path, "/") {
		u.Path = "/" + u.Path
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	for _, hd := range h.HTTPHeaders {
		if strings.EqualFold(hd.Name, "Host") {
			req.Host = hd.Value
			continue
		}
		req.Header.Add(hd.Name, hd.Value)
	}
	defaultHeader(req, "User-Agent", agent)
	defaultHeader(req, "Accept", "*/*")
	return req, nil
}

// defaultHeader sets a header that the handler does not; one it sets to
// nothing is left out.
func defaultHeader(req *http.Request, name, value string) {
	have, ok := req.Header[name]
	switch {
	case !ok:
		req.Header.Set(name, value)
	case len(have) == 1 && have[0] == "" && name != "User-Agent":
		req.Header.Del(name)
	}
}

// transport speaks to pods: no proxy, no kept connections, any certificate.
var transport = &http.Transport{
	TLSClientConfig:    &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // a probe asks whether the pod answers, not who it is
	DisableKeepAlives:  true,
	DisableCompression: true,
	DialContext:        dialer().DialContext,
}

// stayOnHost follows up to ten redirects, and none to another host.
func stayOnHost(next *http.Request, via []*http.Request) error {
	if next.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(via) >= 10 {
		return errors.New("stopped after 10 redirects")
	}
	return nil
}

func runHTTP(ctx context.Context, s subject, h *v1.HTTPGetAction) (verdict, string, error) {
	req, err := request(ctx, s.c, s.podIP, h, userAgent)
	if err != nil {
		return Errored, "", err
	}
	client := &http.Client{Transport: transport, CheckRedirect: stayOnHost}
	resp, err := client.Do(req)
	if err != nil {
		return Failure, err.Error(), nil
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxOutput))
	if err != nil {
		return Failure, err.Error(), nil
	}
	switch {
	case resp.StatusCode >= 300 && resp.StatusCode < 400:
		return Warned, fmt.Sprintf("Probe terminated redirects, Response body: %v", string(body)), nil
	case resp.StatusCode >= 200 && resp.StatusCode < 300:
		return Success, string(body), nil
	}
	return Failure, fmt.Sprintf("HTTP probe failed with statuscode: %d", resp.StatusCode), nil
}

func runGRPC(ctx context.Context, s subject, h *v1.GRPCAction, timeout time.Duration) (verdict, string, error) {
	addr := net.JoinHostPort(s.podIP, strconv.Itoa(int(h.Port)))
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithUserAgent(userAgent),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, a string) (net.Conn, error) { return dialer().DialContext(ctx, "tcp", a) }))
	if err != nil {
		return Errored, "", err
	}
	defer conn.Close()
	service := ""
	if h.Service != nil {
		service = *h.Service
	}
	resp, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
	switch code := status.Code(err); {
	case err == nil && resp.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING:
		return Success, "service healthy", nil
	case err == nil:
		return Failure, fmt.Sprintf("service unhealthy (responded with %q)", resp.GetStatus().String()), nil
	case code == codes.Unimplemented:
		return Failure, fmt.Sprintf("error: this server does not implement the grpc health protocol (grpc.health.v1.Health): %s",
			status.Convert(err).Message()), nil
	case code == codes.DeadlineExceeded:
		return Failure, fmt.Sprintf("timeout: health rpc did not complete within %v", timeout), nil
	case code == codes.Unavailable:
		return Failure, fmt.Sprintf("timeout: failed to connect service %q within %v: %s", addr, timeout, status.Convert(err).Message()),
			nil
	}
	return Failure, fmt.Sprintf("error: health rpc probe failed: %v", err), nil
}
