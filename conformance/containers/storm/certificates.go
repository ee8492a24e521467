package main

import (
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/dlock-go/dlock/conformance/containers/redis"
	"github.com/dlock-go/dlock/conformance/containers/service"
)

// The names of a client's files in the storm's folder, and of the server's in that of its data.
const caFile, certFile, keyFile = "ca.pem", "cert.pem", "key.pem"

// certificatesReplaced replaces all certificates, one after the other, while both authorities are
// trusted. Redis reads a file again when its name is set, also to the same one.
var certificatesReplaced = fault{"certificates replaced", "the authority is replaced, and with it the certificates of the server and of the clients, one by one", true, 0.2, 2, func(s *storm, _ *member, d time.Duration) {
	next := service.NewAuthority(s.t)
	v, k := s.servers[0], redis.CLIOf(s.t, s.servers[0])
	defer k.Close()
	steps := []func(){
		func() {
			both := s.read(caFile) + next.Pem
			s.write(caFile, both)
			k.Must("CONFIG", "SET", "tls-ca-cert-file", v.WriteFile(s.t, caFile, both))
		},
		func() {
			cert, key := next.Issue("127.0.0.1")
			k.Must("CONFIG", "SET", "tls-cert-file", v.WriteFile(s.t, certFile, cert), "tls-key-file", v.WriteFile(s.t, keyFile, key))
		},
		func() {
			cert, key := next.Issue("client")
			s.write(certFile, cert)
			s.sleep(d / 10) // it does not match the key
			s.write(keyFile, key)
		},
		func() {
			s.write(caFile, next.Pem)
			k.Must("CONFIG", "SET", "tls-ca-cert-file", v.WriteFile(s.t, caFile, next.Pem))
		},
	}
	for _, step := range steps {
		step()
		s.sleep(d / time.Duration(len(steps)))
	}
}}

// read returns the text of a file of the clients.
func (s *storm) read(name string) string {
	text, err := os.ReadFile(filepath.Join(s.Dir, name))
	if err != nil {
		s.t.Fatalf("%v", err)
	}
	return string(text)
}

// write replaces a file of the clients.
func (s *storm) write(name, text string) {
	at := filepath.Join(s.Dir, name)
	err := os.WriteFile(at+".new", []byte(text), 0o600)
	if err == nil {
		err = os.Rename(at+".new", at)
	}
	if err != nil {
		s.t.Fatalf("%v", err)
	}
}

// secureRedis starts a Redis that serves its clients over TLS.
func secureRedis(t service.T, dir string) (string, []*service.Server) {
	t.Helper()
	a := service.NewAuthority(t)
	v := service.StartOwn(t, redis.Secure(redis.Redis.With(storing...), a))
	cert, key := a.Issue("client")
	params := url.Values{}
	for name, text := range map[string]string{caFile: a.Pem, certFile: cert, keyFile: key} {
		at := filepath.Join(dir, name)
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			t.Fatalf("%v", err)
		}
		params.Set("tls_"+strings.TrimSuffix(name, ".pem"), at)
	}
	return "rediss://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(v.Ports[1])) + "?" + params.Encode(), []*service.Server{v}
}
