package redis

import (
	"maps"
	"strconv"

	"github.com/dlock-go/dlock/conformance/containers/service"
)

// Secure returns the kind with TLS on the second of its ports, beside the plain first one. It wants
// to see its clients' certificates. There is a third port.
func Secure(k service.Kind, a *service.Authority) service.Kind {
	cert, key := a.Issue("127.0.0.1")
	command, files := k.Command, k.Files
	k.Ports, k.Files = 3, map[string]string{"cert.pem": cert, "key.pem": key, "ca.pem": a.Pem}
	maps.Copy(k.Files, files)
	k.Command = func(dir string, ports []int) []string {
		return append(command(dir, ports), "--tls-port", strconv.Itoa(ports[1]), "--tls-cert-file", dir+"/cert.pem", "--tls-key-file", dir+"/key.pem",
			"--tls-ca-cert-file", dir+"/ca.pem", "--tls-auth-clients", "yes", "--tls-replication", "yes")
	}
	return k
}
