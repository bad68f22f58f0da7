// Limits calls of gRPC, here of channelz, by the API keys of their clients. Run: go run ./examples/grpc
package main

import (
	"log"
	"net"

	"google.golang.org/grpc"
	channelz "google.golang.org/grpc/channelz/service"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	rlaas "rlaas.example/clients/go"
)

func main() {
	limits := rlaas.MustNew("127.0.0.1:50051", rlaas.WithOnNoAnswer(rlaas.Deny))
	key := rlaas.ByMetadata("x-api-key")
	server := grpc.NewServer(
		grpc.UnaryInterceptor(limits.UnaryServerInterceptor(key)),
		grpc.StreamInterceptor(limits.StreamServerInterceptor(key)),
	)
	channelz.RegisterChannelzServiceToServer(server)
	// Probes are not limited.
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	listener, err := net.Listen("tcp", "127.0.0.1:8001")
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(server.Serve(listener))
}
