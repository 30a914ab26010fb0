package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// serve answers HTTP on each given port (default 8080), HTTPS with a certificate
// of its own on tls:PORT, and echoes UDP on udp:PORT. Paths: / says who answers,
// /clientip the caller's address, /healthz 200 until /break was called, /env one
// variable (?name=), /echo what it is told (?msg=, also to its own output),
// /dial asks another server (?to=HOST:PORT&path=), /redirect leads elsewhere
// (?to=).
// It stops accepting half a second after SIGTERM, as a well-behaved server
// behind a Service does.
func serve(ctx context.Context, s streams, args []string) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	host, _ := os.Hostname()
	var broken atomic.Bool
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "Hello from %s\n", host)
	})
	mux.HandleFunc("/hostname", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, host) })
	mux.HandleFunc("/clientip", func(w http.ResponseWriter, r *http.Request) {
		ip, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprintln(w, ip)
	})
	mux.HandleFunc("/env", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, os.Getenv(r.URL.Query().Get("name")))
	})
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		if broken.Load() {
			http.Error(w, "broken", http.StatusInternalServerError)
			return
		}
		io.WriteString(w, "ok")
	})
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(s.out, "%s %s from %s as %q\n", r.Method, r.RequestURI, r.Host, r.UserAgent())
		fmt.Fprintln(w, r.URL.Query().Get("msg"))
	})
	mux.HandleFunc("/dial", func(w http.ResponseWriter, r *http.Request) {
		if err := wget(r.Context(), streams{out: w}, []string{r.URL.Query().Get("to") + "/" + r.URL.Query().Get("path")}); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
		}
	})
	mux.HandleFunc("/redirect", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Query().Get("to"), http.StatusFound)
	})
	mux.HandleFunc("/break", func(w http.ResponseWriter, r *http.Request) { broken.Store(true) })
	mux.HandleFunc("/mend", func(w http.ResponseWriter, r *http.Request) { broken.Store(false) })
	if len(args) == 0 {
		args = []string{"8080"}
	}
	errs := make(chan error, len(args))
	var servers []*http.Server
	for _, a := range args {
		if port, ok := strings.CutPrefix(a, "udp:"); ok {
			c, err := net.ListenPacket("udp", ":"+port)
			if err != nil {
				return err
			}
			go echo(c, host)
			continue
		}
		a, secure := strings.CutPrefix(a, "tls:")
		l, err := net.Listen("tcp", ":"+a)
		if err != nil {
			return err
		}
		if secure {
			cert, err := selfSigned(host)
			if err != nil {
				return err
			}
			l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}})
		}
		srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
		servers = append(servers, srv)
		go func() { errs <- srv.Serve(l) }()
		fmt.Fprintf(s.out, "serving on port %s\n", a)
	}
	select {
	case err := <-errs:
		return err
	case <-ctx.Done():
	}
	time.Sleep(500 * time.Millisecond)
	end, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for _, srv := range servers {
		srv.Shutdown(end)
	}
	fmt.Fprintln(s.out, "stopped")
	return nil
}

func echo(c net.PacketConn, host string) {
	buf := make([]byte, 65536)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		c.WriteTo(append([]byte(host+" "), buf[:n]...), from)
	}
}

// selfSigned makes a certificate that nobody has a reason to trust.
func selfSigned(host string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{host}, NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
