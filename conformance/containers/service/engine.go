package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
	testcontainers "github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
)

const (
	runLabel       = "dlock-test-run"
	containersMark = "containers" // a file in the run's folder: there may be some
	dataDir        = "/data"      // of all servers of a run
)

// engine returns a client of the container engine, if there is one.
var engine = sync.OnceValues(func() (*testcontainers.DockerClient, error) {
	log.SetDefault(log.NewNoopLogger())
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return nil, fmt.Errorf("container: no engine: %w", err)
	}
	if _, err := c.Ping(ctx, client.PingOptions{}); err != nil {
		return nil, fmt.Errorf("container: no engine: %w", err)
	}
	return c, nil
})

// Engine returns an error if there is no container engine.
func Engine() error {
	_, err := engine()
	return err
}

// Image makes sure that the engine has the image of the kind, and returns where it came from.
func Image(k Kind) (origin string, err error) {
	e, err := engine()
	if err != nil {
		return "", err
	}
	_, origin, err = findImage(e, k)
	return origin, err
}

// box is a server in a container.
type box struct {
	kind   Kind
	image  string
	dir    string // its data
	argv   []string
	engine *testcontainers.DockerClient
	c      testcontainers.Container // nil: none was made since the last wipe
}

func inContainer(k Kind, ports []int) (place, string, error) {
	e, err := engine()
	if err != nil {
		return nil, "", err
	}
	image, origin, err := findImage(e, k)
	if err != nil {
		return nil, "", err
	}
	dir := fmt.Sprint(dataDir, "/", boxes.Add(1))
	return &box{kind: k, image: image, dir: dir, argv: k.argv(dir, ports), engine: e}, origin, nil
}

var boxes atomic.Int64

func (b *box) start() error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if b.c != nil {
		_, err := b.engine.ContainerStart(ctx, b.c.GetContainerID(), client.ContainerStartOptions{})
		return err
	}
	var files []testcontainers.ContainerFile
	for name, text := range b.kind.Files {
		files = append(files, testcontainers.ContainerFile{
			Reader: strings.NewReader(text), ContainerFilePath: b.dir + "/" + name, FileMode: 0o644,
		})
	}
	var memory testcontainers.Container
	if !b.kind.OnDisk {
		memory = keeperOf(b.image)
	}
	var err error
	b.c, err = contain(ctx, testcontainers.ContainerRequest{
		Image:      b.image,
		Entrypoint: b.argv,
		Files:      files,
		ConfigModifier: func(c *container.Config) {
			c.WorkingDir, c.User = b.dir, "0"
			if memory == nil {
				c.Volumes = map[string]struct{}{dataDir: {}}
			}
		},
		HostConfigModifier: func(h *container.HostConfig) {
			h.NetworkMode = "host"
			if memory != nil {
				h.VolumesFrom = []string{memory.GetContainerID()}
			}
		},
	})
	return err
}

// contain starts a container of the run.
func contain(ctx context.Context, r testcontainers.ContainerRequest) (testcontainers.Container, error) {
	run, err := begin()
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(run.folder, containersMark), nil, 0o600); err != nil {
		return nil, err
	}
	r.Labels = map[string]string{runLabel: run.id}
	return testcontainers.GenericContainer(ctx, testcontainers.GenericContainerRequest{ContainerRequest: r, Started: true, Logger: log.NewNoopLogger()})
}

// keeperOf returns the container of the run that only sleeps; nil: the image has no program for
// that. Its volume has the data of all servers of the run, also while they are dead. The volume is
// in memory: tests start hundreds of servers and make hundreds of databases, and while a slow disk
// writes those, all servers stand still for seconds.
func keeperOf(image string) testcontainers.Container {
	keeper.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		c, err := contain(ctx, testcontainers.ContainerRequest{
			Image:          image,
			Entrypoint:     []string{"sleep", "infinity"},
			ConfigModifier: func(c *container.Config) { c.User = "0" },
			HostConfigModifier: func(h *container.HostConfig) {
				h.NetworkMode = "none"
				h.Mounts = []mount.Mount{{Type: mount.TypeVolume, Target: dataDir, VolumeOptions: &mount.VolumeOptions{
					DriverConfig: &mount.Driver{Name: "local", Options: map[string]string{"type": "tmpfs", "device": "tmpfs"}},
				}}}
			},
		})
		if err == nil {
			keeper.c = c
		}
	})
	return keeper.c
}

var keeper struct {
	sync.Once
	c testcontainers.Container
}

func (b *box) do(f func(ctx context.Context, id string) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	return f(ctx, b.c.GetContainerID())
}

func (b *box) running() bool {
	if b.c == nil {
		return false
	}
	running := true // unless the engine says otherwise
	b.do(func(ctx context.Context, id string) error {
		i, err := b.engine.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
		if err == nil {
			running = i.Container.State.Running
		}
		return err
	})
	return running
}

func (b *box) pid() (pid int, err error) {
	err = b.do(func(ctx context.Context, id string) error {
		i, err := b.engine.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
		if err == nil {
			pid = i.Container.State.Pid
		}
		return err
	})
	return pid, err
}

func (b *box) data() string { return b.dir }

func (b *box) pause() error {
	return b.do(func(ctx context.Context, id string) error {
		_, err := b.engine.ContainerPause(ctx, id, client.ContainerPauseOptions{})
		for range 4 { // on a busy machine a container may begin processes while it is frozen
			if err == nil || !strings.Contains(err.Error(), "unable to freeze") {
				break
			}
			time.Sleep(200 * time.Millisecond)
			_, err = b.engine.ContainerPause(ctx, id, client.ContainerPauseOptions{})
		}
		return err
	})
}

func (b *box) resume() error {
	return b.do(func(ctx context.Context, id string) error {
		_, err := b.engine.ContainerUnpause(ctx, id, client.ContainerUnpauseOptions{})
		return err
	})
}

func (b *box) kill() error {
	return b.do(func(ctx context.Context, id string) error {
		wait := b.engine.ContainerWait(ctx, id, client.ContainerWaitOptions{})
		if _, err := b.engine.ContainerKill(ctx, id, client.ContainerKillOptions{Signal: "KILL"}); err != nil {
			return err
		}
		select {
		case <-wait.Result:
			return nil
		case err := <-wait.Error:
			return err
		}
	})
}

func (b *box) wipe() error {
	err := b.do(func(ctx context.Context, id string) error {
		if err := discard(ctx, b.engine, id); err != nil {
			return err
		}
		if b.kind.OnDisk || keeper.c == nil {
			return nil
		}
		code, _, err := keeper.c.Exec(ctx, []string{"rm", "-rf", b.dir})
		if err == nil && code != 0 {
			err = fmt.Errorf("container: rm -rf %s: exit code %d", b.dir, code)
		}
		return err
	})
	b.c = nil
	return err
}

func (b *box) log(since time.Time) string {
	if b.c == nil {
		return ""
	}
	var text bytes.Buffer
	err := b.do(func(ctx context.Context, id string) error {
		r, err := b.engine.ContainerLogs(ctx, id, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Since: unix(since)})
		if err != nil {
			return err
		}
		defer r.Close()
		_, err = stdcopy.StdCopy(&text, &text, r)
		return err
	})
	if err != nil {
		return err.Error()
	}
	return text.String()
}

// unix is an instant as the engine takes it; none for the zero value.
func unix(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return fmt.Sprintf("%d.%09d", t.Unix(), t.Nanosecond())
}

func (b *box) remove() {
	if b.c != nil {
		b.wipe() // the cleaner tries again
	}
}

func discard(ctx context.Context, e *testcontainers.DockerClient, id string) error {
	_, err := e.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	return err
}

// removeContainers removes all containers of a run. One that is being made when the run dies may
// appear a moment later.
func removeContainers(id string) {
	e, err := engine()
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for clean := 0; clean < 2 && ctx.Err() == nil; clean++ {
		if clean > 0 {
			time.Sleep(time.Second)
		}
		list, err := e.ContainerList(ctx, client.ContainerListOptions{
			All: true, Filters: make(client.Filters).Add("label", runLabel+"="+id),
		})
		if err != nil {
			return
		}
		for _, c := range list.Items {
			discard(ctx, e, c.ID)
			clean = 0
		}
	}
}

type foundImage struct {
	image, origin string
	err           error
}

var images sync.Map // by kind: a function that returns the foundImage

// findImage returns the image of a kind that the engine has, after having got it if need be.
func findImage(e *testcontainers.DockerClient, k Kind) (image, origin string, err error) {
	find, _ := images.LoadOrStore(k.Name, sync.OnceValue(func() (f foundImage) {
		f.image, f.origin, f.err = lookForImage(e, k)
		return f
	}))
	f := find.(func() foundImage)()
	return f.image, f.origin, f.err
}

func lookForImage(e *testcontainers.DockerClient, k Kind) (image, origin string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	has := func(image string) bool {
		_, err := e.ImageInspect(ctx, image)
		return err == nil
	}
	built := "container of " + k.Built + ", built from Debian's packages"
	name := "DLOCK_TEST_IMAGE_" + strings.ToUpper(k.Name)
	wanted := os.Getenv(name)
	switch {
	case wanted != "":
		image = wanted
	case has(k.Image):
		return k.Image, "container of " + k.Image, nil
	case has(k.Built):
		return k.Built, built, nil
	default:
		image = k.Image
	}
	if has(image) {
		return image, "container of " + image, nil
	}
	pulled := pull(ctx, e, image)
	if pulled == nil {
		return image, "container of " + image, nil
	}
	if wanted != "" {
		return "", "", fmt.Errorf("container: the image that %s names, %s: %w", name, wanted, pulled)
	}
	if err := build(ctx, k.Name); err != nil {
		return "", "", fmt.Errorf("container: %s cannot be pulled (%w) and not be built: %w", k.Image, pulled, err)
	}
	return k.Built, built, nil
}

// pull fails soon if no registry can be reached, and is patient if one answers.
func pull(ctx context.Context, e *testcontainers.DockerClient, image string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silent := time.AfterFunc(10*time.Second, cancel)
	r, err := e.ImagePull(ctx, image, client.ImagePullOptions{})
	if err != nil {
		return err
	}
	for m, err := range r.JSONMessages(ctx) {
		silent.Stop()
		if err != nil {
			return err
		}
		if m.Error != nil {
			return errors.New(m.Error.Message)
		}
	}
	return ctx.Err()
}

// build runs scripts/images.sh of this repository.
func build(ctx context.Context, kind string) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	for {
		script := filepath.Join(dir, "scripts", "images.sh")
		if _, err := os.Stat(script); err == nil {
			out, err := exec.CommandContext(ctx, script, kind).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%s %s: %w:\n%s", script, kind, err, tail(string(out), 10))
			}
			return nil
		}
		if dir == filepath.Dir(dir) {
			return errors.New("there is no scripts/images.sh above this folder")
		}
		dir = filepath.Dir(dir)
	}
}
