package service

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	testcontainers "github.com/testcontainers/testcontainers-go"
)

// Tool returns the path of a program that comes with a kind of server, such as its command line: it
// is copied out of the server's image, or else installed on this machine. The copy is removed with
// the test.
func Tool(t T, k Kind, name string) string {
	t.Helper()
	e, err := engine()
	if err != nil {
		k.Needs = ""
		if err := installed(k, name); err != nil {
			t.Fatalf("%v", err)
		}
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatalf("%v", err)
		}
		return path
	}
	run, err := begin()
	if err != nil {
		t.Fatalf("%v", err)
	}
	dir, err := os.MkdirTemp(run.folder, "tool-")
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, name)
	if err := copyTool(e, k, name, path); err != nil {
		t.Fatalf("copy %s out of the image of %s: %v", name, k.Name, err)
	}
	return path
}

// copyTool copies a program out of the image of a kind: published images have programs in other
// folders than Debian.
func copyTool(e *testcontainers.DockerClient, k Kind, name, to string) error {
	image, _, err := findImage(e, k)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c, err := e.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config: &container.Config{Image: image, Cmd: []string{"true"}}, // it is never started
	})
	if err != nil {
		return err
	}
	defer discard(context.WithoutCancel(ctx), e, c.ID)
	for _, dir := range []string{"/usr/bin/", "/usr/local/bin/", "/"} {
		var from client.CopyFromContainerResult
		if from, err = e.CopyFromContainer(ctx, c.ID, client.CopyFromContainerOptions{SourcePath: dir + name}); err == nil {
			defer from.Content.Close()
			return unpack(from.Content, to)
		}
	}
	return err
}

// unpack writes the one file of an archive.
func unpack(archive io.Reader, to string) error {
	r := tar.NewReader(archive)
	if h, err := r.Next(); err != nil || h.Typeflag != tar.TypeReg {
		return fmt.Errorf("not an archive of one file: %v", err)
	}
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o700)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}
