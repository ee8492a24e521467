package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/dlock-go/dlock/conformance/containers/service"
)

// etcdPrefix begins all keys of dlock.
const etcdPrefix = "dlock/"

// The faults of etcd.
var (
	noSpace = fault{"no space", "the alarm NOSPACE is raised, and disarmed", true, 0.2, 2, func(s *storm, _ *member, d time.Duration) {
		s.atEtcd(func(ctx context.Context, c *clientv3.Client) error {
			status, err := c.Status(ctx, s.servers[0].Addr)
			if err != nil {
				return err
			}
			alarm := &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, Alarm: pb.AlarmType_NOSPACE, MemberID: status.Header.MemberId}
			if _, err := pb.NewMaintenanceClient(c.ActiveConnection()).Alarm(ctx, alarm); err != nil {
				return err
			}
			s.sleep(d)
			_, err = c.AlarmDisarm(ctx, &clientv3.AlarmMember{})
			return err
		})
	}}
	compacted = fault{"history compacted", "all revisions but the last are compacted", true, 0, 0, func(s *storm, _ *member, _ time.Duration) {
		s.atEtcd(func(ctx context.Context, c *clientv3.Client) error {
			res, err := c.Get(ctx, etcdPrefix)
			if err == nil {
				_, err = c.Compact(ctx, res.Header.Revision, clientv3.WithCompactPhysical())
			}
			return err
		})
	}}
	defragmented = fault{"defragmented", "the database is defragmented, and the server stands still meanwhile", true, 0, 0, func(s *storm, _ *member, _ time.Duration) {
		s.atEtcd(func(ctx context.Context, c *clientv3.Client) error {
			_, err := c.Defragment(ctx, s.servers[0].Addr)
			return err
		})
	}}
)

// leasesRevoked ends leases of etcd that their client does not trust any more. Another party keeps
// them until then, so that there is something to revoke. A lease that is revoked earlier lets the
// next holder in before this one knows: dlock promises nothing about that.
var leasesRevoked = fault{"leases revoked", "a client is isolated until its leases have ended, and then another party revokes them", false, 1, 1.2, func(s *storm, m *member, d time.Duration) {
	for end := time.Now().Add(patience); time.Now().Before(end); s.sleep(50 * time.Millisecond) {
		heal := m.proxy.Isolate()
		revoked := s.revoke(m, d)
		heal()
		if revoked {
			return
		}
	}
}}

// revoke revokes the leases of a client after d, and reports whether there was one. The server may
// be down.
func (s *storm) revoke(m *member, d time.Duration) (revoked bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, err := s.dialEtcd(ctx)
	if err != nil {
		return false
	}
	defer c.Close()
	isolated := time.Now()
	keys, err := c.Get(ctx, etcdPrefix, clientv3.WithPrefix())
	if err != nil {
		return false
	}
	leases := map[clientv3.LeaseID]bool{}
	for _, kv := range keys.Kvs {
		if strings.HasSuffix(string(kv.Value), fmt.Sprint("process ", m.proc)) { // its label
			leases[clientv3.LeaseID(kv.Lease)] = true
		}
	}
	if len(leases) == 0 {
		return false
	}
	s.sleep(d / 2)
	for id := range leases {
		c.KeepAliveOnce(ctx, id)
	}
	s.sleep(time.Until(isolated.Add(d)))
	for id := range leases {
		if _, err := c.Revoke(ctx, id); err == nil {
			revoked = true
		}
	}
	return revoked
}

// atEtcd does something at the server, which no other fault concerns, as its root.
func (s *storm) atEtcd(f func(context.Context, *clientv3.Client) error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := s.dialEtcd(ctx)
	if err == nil {
		defer c.Close()
		err = f(ctx, c)
	}
	if err != nil {
		s.t.Fatalf("at etcd: %v", err)
	}
}

// root is the user of an etcd that requires one, for the storm itself.
const root, rootPassword = "root", "root"

func (s *storm) dialEtcd(ctx context.Context) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Context: ctx, Endpoints: service.Addrs(s.servers), Username: root, Password: rootPassword, DialTimeout: 3 * time.Second, Logger: zap.NewNop()})
}

// guardEtcd makes a server require a user and a password, and gives the clients the rights of
// docs/etcd.md.
func guardEtcd(t service.T, v *service.Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{v.Addr}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer c.Close()
	password, _ := withPassword.Password()
	for _, step := range []func() error{
		func() error { _, err := c.UserAdd(ctx, root, rootPassword); return err },
		func() error { _, err := c.UserGrantRole(ctx, root, root); return err },
		func() error { _, err := c.RoleAdd(ctx, user); return err },
		func() error { return allow(ctx, c, mayAll) },
		func() error { _, err := c.UserAdd(ctx, user, password); return err },
		func() error { _, err := c.UserGrantRole(ctx, user, user); return err },
		func() error { _, err := c.AuthEnable(ctx); return err },
	} {
		if err := step(); err != nil {
			t.Fatalf("require a user: %v", err)
		}
	}
}

// What the clients may do with the keys of dlock.
const (
	mayRead = clientv3.PermissionType(clientv3.PermRead)
	mayAll  = clientv3.PermissionType(clientv3.PermReadWrite)
)

// allow gives the clients a right on all keys of dlock, in place of the one they have.
func allow(ctx context.Context, c *clientv3.Client, kind clientv3.PermissionType) error {
	_, err := c.RoleGrantPermission(ctx, user, etcdPrefix, clientv3.GetPrefixRangeEnd(etcdPrefix), kind)
	return err
}
