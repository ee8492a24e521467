package etcd

import (
	"context"
	"errors"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/dlock-go/dlock/driver"
)

// aged is a server that reports its version, and supports no other call.
type aged struct {
	pb.UnimplementedMaintenanceServer
	version string
}

func (a *aged) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	return &pb.StatusResponse{Version: a.version}, nil
}

// TestOpenRefusesOldServers: Open refuses a server by the version that it reports on the wire.
func TestOpenRefusesOldServers(t *testing.T) {
	for version, old := range map[string]bool{
		"3.4.37": true, "3.3.0-rc.1": true, "2.3.8": true, "3.5.0": false, "3.10.1": false, "4.0.0": false, "": false, "x": false,
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer()
		pb.RegisterMaintenanceServer(s, &aged{version: version})
		go s.Serve(l)
		defer s.Stop()
		host := l.Addr().String()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = open(ctx, driver.Config{URL: &url.URL{Scheme: "etcd", Host: host}, Hosts: []string{host}})
		if err == nil || errors.Is(err, driver.ErrUnsupported) != old || old != strings.Contains(err.Error(), "3.5 or newer is required") {
			t.Errorf("version %q: %v", version, err)
		}
	}
}
