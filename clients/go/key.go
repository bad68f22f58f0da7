package rlaas

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// KeyFunc returns what a request of net/http is limited by; nil exempts it. An error is logged, and the request
// rejected with status 500.
type KeyFunc func(*http.Request) (*Request, error)

// RPCKeyFunc returns what a call of gRPC is limited by; nil exempts it. method is the full name of the method. An
// error is logged, and the call rejected with INTERNAL.
type RPCKeyFunc func(ctx context.Context, method string) (*Request, error)

// forwardedFor is the header to which each proxy appends the address of its own peer.
const forwardedFor = "X-Forwarded-For"

// missingKey is the error of a request that lacks its key, which is the fault of its sender.
type missingKey struct{ header string }

func (m missingKey) Error() string {
	return fmt.Sprintf("header %s must be present, in visible ASCII", strings.ToLower(m.header))
}

// ByAddress limits by the address of the client, an IPv6 address by its /64. The resource is the pattern of the route,
// such as /users/{id}, for middleware on a route of a ServeMux, or else the path. The client is who the outermost of the trusted proxies got the request from, by X-Forwarded-For; with 0 proxies
// it is the peer, and the header is not read.
func ByAddress(proxies int) KeyFunc {
	return func(r *http.Request) (*Request, error) {
		user, err := clientAddress(r.RemoteAddr, r.Header.Values(forwardedFor), proxies)
		return withPath(user, r), err
	}
}

// ByHeader limits by the value of a header, with the resource of [ByAddress]. A request without the header is rejected
// with status 400.
func ByHeader(name string) KeyFunc {
	return func(r *http.Request) (*Request, error) {
		value := r.Header.Get(name)
		if value == "" || !isVisibleASCII(value) {
			return nil, missingKey{name}
		}
		return withPath(value, r), nil
	}
}

// ByPeer limits by the address of the client, as [ByAddress], and by the method as the resource.
func ByPeer(proxies int) RPCKeyFunc {
	return func(ctx context.Context, method string) (*Request, error) {
		address := ""
		if peer, ok := peer.FromContext(ctx); ok {
			address = peer.Addr.String()
		}
		user, err := clientAddress(address, metadata.ValueFromIncomingContext(ctx, forwardedFor), proxies)
		return &Request{UserID: user, Resource: method}, err
	}
}

// ByMetadata limits by the value of a metadata key, and by the method as the resource. A call without it is
// rejected with INVALID_ARGUMENT.
func ByMetadata(name string) RPCKeyFunc {
	return func(ctx context.Context, method string) (*Request, error) {
		values := metadata.ValueFromIncomingContext(ctx, name)
		if len(values) == 0 || values[0] == "" || !isVisibleASCII(values[0]) {
			return nil, missingKey{name}
		}
		return &Request{UserID: values[0], Resource: method}, nil
	}
}

// withPath has the pattern of the route, if a router has found it, or else the path as handlers see it, so that no
// other spelling of it avoids a rule. The pattern of a subtree is no route.
func withPath(user string, r *http.Request) *Request {
	path := r.URL.Path
	if start := strings.IndexByte(r.Pattern, '/'); start >= 0 && !strings.HasSuffix(r.Pattern, "/") {
		path = r.Pattern[start:]
	}
	return &Request{UserID: user, Resource: strings.ToValidUTF8(path, "\uFFFD")}
}

// clientAddress falls back to the peer if the request has not passed all proxies, or has no valid address there.
func clientAddress(peer string, forwarded []string, proxies int) (string, error) {
	if proxies > 0 {
		entries := strings.Split(strings.Join(forwarded, ","), ",")
		if at := len(entries) - proxies; at >= 0 {
			if address, err := parseAddress(strings.TrimSpace(entries[at])); err == nil {
				return network(address), nil
			}
		}
	}
	address, err := parseAddress(peer)
	if err != nil {
		return "", errors.New("the peer has no address: count the proxies, or limit by another key")
	}
	return network(address), nil
}

// parseAddress parses an IP address, with or without a port.
func parseAddress(text string) (netip.Addr, error) {
	if withPort, err := netip.ParseAddrPort(text); err == nil {
		return withPort.Addr(), nil
	}
	return netip.ParseAddr(text)
}

// network returns an address, or the network of an IPv6 address that is one site.
func network(address netip.Addr) string {
	if address = address.Unmap().WithZone(""); address.Is4() {
		return address.String()
	}
	return netip.PrefixFrom(address, 64).Masked().String()
}

func isVisibleASCII(text string) bool {
	return strings.IndexFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) < 0
}
