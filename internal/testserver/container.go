package testserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"time"

	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	tclog "github.com/testcontainers/testcontainers-go/log"
)

// pullTimeout is for an image of some hundred megabytes on a slow line.
const pullTimeout = 10 * time.Minute

// A containerSpec says how to run an engine's image.
type containerSpec struct {
	image string
	port  string // as in "5432/tcp"
	env   map[string]string
	args  []string // for the image's entry point
	// dsn is the DSN of the server at host and port.
	dsn func(addr string) string
}

// A dockerContainer is a server in a container.
type dockerContainer struct {
	url       string
	container *testcontainers.DockerContainer
	client    client.APIClient
	watchdog  *watchdog // nil where there is no docker command or no shell
}

var _ backend = (*dockerContainer)(nil)

// afterContainer removes the container whose name is $last through the daemon at $1.
const afterContainer = `[ -z "$last" ] || DOCKER_HOST=$1 docker rm --force --volumes "$last" >/dev/null 2>&1`

// newContainer creates a container. Its error is a closedError when no daemon answers, or when the image
// is not to be had.
func newContainer(ctx context.Context, spec containerSpec) (backend, error) {
	// testcontainers tells standard error what it does, amid the figures of a benchmark. What a failure
	// needs, its error carries.
	quiet := testcontainers.WithLogger(tclog.NewNoopLogger())
	tclog.SetDefault(tclog.NewNoopLogger())

	provider, err := dockerProvider(ctx, quiet)
	if err != nil {
		return nil, closedf("no Docker daemon answers: %v", err)
	}
	docker := provider.Client()
	if err := haveImage(ctx, docker, spec.image); err != nil {
		return nil, closedf("image %s is not on this machine and cannot be pulled: %v", spec.image, err)
	}

	host, err := provider.DaemonHost(ctx)
	if err != nil {
		return nil, err
	}
	// The server's port here is chosen here, because one that Docker chooses is another after a restart.
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	inside, err := network.ParsePort(spec.port)
	if err != nil {
		return nil, err
	}
	binding := network.PortBinding{HostPort: strconv.Itoa(port)}
	if host == "localhost" { // where the image's port is published to IPv4 alone
		host = "127.0.0.1"
		binding.HostIP = netip.MustParseAddr(host)
	}

	name := "queue-test-" + randomName()
	c := &dockerContainer{
		url:    spec.dsn(net.JoinHostPort(host, binding.HostPort)),
		client: docker,
	}
	if _, err := exec.LookPath("docker"); err == nil && posix {
		if c.watchdog, err = startWatchdog(afterContainer, docker.DaemonHost()); err != nil {
			return nil, err
		}
		if err := c.watchdog.tell(name); err != nil {
			return nil, err
		}
	}
	c.container, err = testcontainers.Run(ctx, spec.image,
		quiet,
		testcontainers.WithNoStart(),
		testcontainers.WithName(name),
		testcontainers.WithEnv(spec.env),
		testcontainers.WithCmd(spec.args...),
		testcontainers.WithExposedPorts(spec.port),
		testcontainers.WithHostConfigModifier(func(h *container.HostConfig) {
			h.PortBindings = network.PortMap{inside: {binding}}
			h.ShmSize = 256 << 20 // Docker's 64 MB are too few for parallel queries
		}))
	if err != nil {
		err = fmt.Errorf("%w\n(if it is the reaper's image that is missing, set TESTCONTAINERS_RYUK_DISABLED=true)", err)
		return nil, errors.Join(err, c.remove(ctx))
	}
	return c, nil
}

// dockerProvider returns testcontainers' provider once its daemon has answered.
func dockerProvider(ctx context.Context, opts ...testcontainers.DockerProviderOption) (*testcontainers.DockerProvider, error) {
	// Without the name of the network that containers join, the provider makes one of its own to ask for the
	// host's address; two processes at once then make two of the same name, which Docker cannot tell apart.
	opts = append(opts, testcontainers.WithDefaultBridgeNetwork(testcontainers.Bridge))
	provider, err := testcontainers.NewDockerProvider(opts...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return provider, provider.Health(ctx)
}

// haveImage pulls the image unless it is present.
func haveImage(ctx context.Context, docker client.APIClient, image string) error {
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	if _, err := docker.ImageInspect(ctx, image); err == nil {
		return nil
	}
	var opts client.ImagePullOptions
	if _, auth, err := testcontainers.DockerImageAuth(ctx, image); err == nil {
		if opts.RegistryAuth, err = authconfig.Encode(auth); err != nil {
			return err
		}
	}
	pull, err := docker.ImagePull(ctx, image, opts)
	if err != nil {
		return err
	}
	return errors.Join(pull.Wait(ctx), pull.Close())
}

func (c *dockerContainer) dsn() string { return c.url }

func (c *dockerContainer) start(ctx context.Context) error { return c.container.Start(ctx) }

func (c *dockerContainer) exited(ctx context.Context) error {
	state, err := c.container.State(ctx)
	if err != nil || state.Running {
		return err
	}
	return fmt.Errorf("the container is %s, exit status %d %s", state.Status, state.ExitCode, state.Error)
}

func (c *dockerContainer) stop(ctx context.Context, mode Mode) error {
	if mode == Immediate {
		_, err := c.client.ContainerKill(ctx, c.container.ID, client.ContainerKillOptions{Signal: "KILL"})
		return err
	}
	timeout := stopTimeout
	return c.container.Stop(ctx, &timeout)
}

func (c *dockerContainer) log(ctx context.Context) string {
	r, err := c.container.Logs(ctx)
	if err != nil {
		return err.Error()
	}
	defer r.Close()
	log, err := io.ReadAll(r)
	if err != nil {
		return err.Error()
	}
	return tail(log)
}

func (c *dockerContainer) remove(ctx context.Context) error {
	var err error
	if c.container != nil {
		err = c.container.Terminate(ctx)
	}
	if c.watchdog == nil {
		return err
	}
	if err == nil && c.container != nil {
		err = c.watchdog.tell("")
	}
	return errors.Join(err, c.watchdog.close(ctx))
}
