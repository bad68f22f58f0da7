package rlaas

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	pb "rlaas.example/clients/go/ratelimitv1"
)

// Option is a setting of a client.
type Option func(*settings)

type settings struct {
	timeout       time.Duration
	onNoAnswer    Policy
	onOverload    Policy
	retries       int
	maxAge        time.Duration
	token, apiKey string
	tls           *tls.Config
	conn          grpc.ClientConnInterface
}

// WithTimeout sets the timeout of a call that is sent, by default 250 ms. The first call has a second at least, to
// connect.
func WithTimeout(timeout time.Duration) Option { return func(s *settings) { s.timeout = timeout } }

// WithOnNoAnswer sets the policy for requests without an answer, by default [Allow].
func WithOnNoAnswer(policy Policy) Option { return func(s *settings) { s.onNoAnswer = policy } }

// WithOnOverload sets the policy for requests that an overloaded server refuses, or that find too many others waiting
// in this program, by default [Deny].
func WithOnOverload(policy Policy) Option { return func(s *settings) { s.onOverload = policy } }

// WithRetries repeats a Check without an answer up to so many times (at most 5) within its timeout, by default
// never. Each gets a request id, so that the server takes its units once.
func WithRetries(most int) Option { return func(s *settings) { s.retries = most } }

// WithMaxAge sets the longest time for which a refusal is remembered, by default a second. Zero remembers none.
func WithMaxAge(age time.Duration) Option { return func(s *settings) { s.maxAge = age } }

// WithToken sends this bearer token with each call. An empty one is not sent.
func WithToken(token string) Option { return func(s *settings) { s.token = token } }

// WithAPIKey sends this API key with each call. It names the project whose rules decide. An empty one is not sent.
func WithAPIKey(key string) Option { return func(s *settings) { s.apiKey = key } }

// WithTLS sets the certificate authorities that are trusted, and a client certificate. Without it an address
// with https:// trusts the authorities of the system.
func WithTLS(config *tls.Config) Option { return func(s *settings) { s.tls = config } }

// WithConn makes the calls by conn, whatever the address is. That of package rlaastest has no server.
func WithConn(conn grpc.ClientConnInterface) Option { return func(s *settings) { s.conn = conn } }

const (
	firstTimeout = time.Second
	// Fewer than the server repeats a reply.
	maxRetries = 5
)

// New returns a client of the server at this address: host:port, http://host:port, https://host:port,
// dns:///name:port or unix:/path. It begins to connect, and succeeds even if the server is away; an error means
// that a setting is not valid.
func New(address string, options ...Option) (*Client, error) {
	s := settings{timeout: 250 * time.Millisecond, onNoAnswer: Allow, onOverload: Deny, maxAge: time.Second}
	for _, option := range options {
		option(&s)
	}
	switch {
	case s.timeout <= 0:
		return nil, errors.New("rlaas: timeout must be longer than zero")
	case s.onNoAnswer == nil || s.onOverload == nil:
		return nil, errors.New("rlaas: the policy must not be nil")
	case s.retries < 0 || s.retries > maxRetries:
		return nil, fmt.Errorf("rlaas: retries must be 0 to %d", maxRetries)
	}
	sent, err := s.metadata()
	if err != nil {
		return nil, err
	}
	if s.conn == nil {
		if s.conn, err = s.connect(address); err != nil {
			return nil, err
		}
	}
	return &Client{
		settings:     s,
		address:      address,
		limits:       pb.NewRateLimitServiceClient(s.conn),
		reservations: pb.NewReservationServiceClient(s.conn),
		credentials:  sent,
		refusals:     &refusals{maxAge: s.maxAge, now: time.Now},
		queue:        queue{timeout: s.timeout, longest: maxWait, full: errOverload, flows: make(map[string]*flow)},
	}, nil
}

// connect begins to connect to an address.
func (s *settings) connect(address string) (*grpc.ClientConn, error) {
	target, transport, err := s.endpoint(address)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(target,
		grpc.WithTransportCredentials(transport),
		// Balances calls over all addresses of a name.
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin": {}}]}`),
		grpc.WithDisableServiceConfig(),
		// Detects a server that disappeared without closing the connection.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		// The connection stays without calls: the next one has no time to connect.
		grpc.WithIdleTimeout(0),
		// By default a server that was away for long is tried again after two minutes only.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: firstTimeout,
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("rlaas: %w", err)
	}
	conn.Connect()
	return conn, nil
}

// MustNew is like [New] but panics if a setting is not valid. It panics for no other reason.
func MustNew(address string, options ...Option) *Client {
	client, err := New(address, options...)
	if err != nil {
		panic(err)
	}
	return client
}

// endpoint returns the target of gRPC and its credentials.
func (s *settings) endpoint(address string) (string, credentials.TransportCredentials, error) {
	hasTLS := s.tls != nil
	if path, ok := strings.CutPrefix(address, "unix:"); ok && path != "" {
		if hasTLS {
			return "", nil, errors.New("rlaas: a Unix socket has no TLS")
		}
		return address, insecure.NewCredentials(), nil
	}
	name := strings.TrimPrefix(address, "dns:///")
	if rest, ok := strings.CutPrefix(address, "https://"); ok {
		name, hasTLS = strings.TrimSuffix(rest, "/"), true
	} else if rest, ok := strings.CutPrefix(address, "http://"); ok {
		if hasTLS {
			return "", nil, errors.New("rlaas: address must begin with https:// if TLS is set")
		}
		name = strings.TrimSuffix(rest, "/")
	}
	host, port, err := net.SplitHostPort(name)
	if err != nil || host == "" || port == "" || strings.Contains(name, "/") {
		return "", nil, fmt.Errorf("rlaas: address %q must be host:port, http(s)://host:port, dns:///name:port or unix:/path", address)
	}
	if !hasTLS {
		return "dns:///" + name, insecure.NewCredentials(), nil
	}
	return "dns:///" + name, credentials.NewTLS(s.tls), nil
}

// metadata returns the metadata of each call.
func (s *settings) metadata() (metadata.MD, error) {
	sent := metadata.MD{}
	if s.token != "" {
		sent.Set("authorization", "Bearer "+s.token)
	}
	if s.apiKey != "" {
		sent.Set("x-api-key", s.apiKey)
	}
	for name, values := range sent {
		if !isVisibleASCII(values[0]) {
			return nil, fmt.Errorf("rlaas: the value of %s must be one line of visible ASCII characters", name)
		}
	}
	return sent, nil
}
