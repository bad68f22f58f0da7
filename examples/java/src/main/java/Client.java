import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;

import com.google.protobuf.Duration;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.StatusRuntimeException;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import ratelimit.v1.CheckRequest;
import ratelimit.v1.CheckResponse;
import ratelimit.v1.RateLimitServiceGrpc;
import ratelimit.v1.RateLimitServiceGrpc.RateLimitServiceBlockingStub;

/** Checks the rate limit of each user id on standard input. */
public final class Client {
  /**
   * Deadline of a call. The default is generous for a first try. In production, with established
   * connections and a warm JVM, 20 ms is enough.
   */
  private static final long DEADLINE_MS =
      Long.parseLong(System.getenv().getOrDefault("DEADLINE_MS", "5000"));

  /**
   * What to do without a response. true allows the request: during an outage of rlaas there is no
   * limit. false rejects it: an outage of rlaas is an outage of your service.
   */
  private static final boolean FAIL_OPEN = true;

  /**
   * Sends a call again as soon as the answer takes longer than this, and takes the first answer.
   * For low latency with several servers. Unset: a call is repeated only if it fails.
   */
  private static final long HEDGING_DELAY_MS =
      Long.parseLong(System.getenv().getOrDefault("HEDGING_DELAY_MS", "0"));

  /**
   * Lets gRPC repeat a call without an answer within its deadline. The request id makes that safe.
   * If many calls fail, none is repeated. After a lost connection Java reports UNKNOWN.
   */
  private static Map<String, ?> serviceConfig() {
    Map<String, ?> name = Map.of("service", RateLimitServiceGrpc.SERVICE_NAME, "method", "Check");
    Map<String, ?> retry =
        Map.of(
            "maxAttempts", 3.0,
            "initialBackoff", "0.005s",
            "maxBackoff", "0.02s",
            "backoffMultiplier", 2.0,
            "retryableStatusCodes", List.of("UNAVAILABLE", "UNKNOWN"));
    Map<String, ?> hedging =
        Map.of(
            "maxAttempts", 3.0,
            "hedgingDelay", HEDGING_DELAY_MS / 1000.0 + "s",
            "nonFatalStatusCodes", List.of("UNAVAILABLE", "UNKNOWN"));
    Map<String, ?> method =
        HEDGING_DELAY_MS > 0
            ? Map.of("name", List.of(name), "hedgingPolicy", hedging)
            : Map.of("name", List.of(name), "retryPolicy", retry);
    return Map.of(
        "methodConfig", List.of(method),
        "retryThrottling", Map.of("maxTokens", 10.0, "tokenRatio", 0.1));
  }

  /** Creates one channel for all threads of the process. It reconnects automatically. */
  private static ManagedChannel connect(String target) {
    ManagedChannelBuilder<?> channel =
        Grpc.newChannelBuilder(target, InsecureChannelCredentials.create())
            // Balance calls over all addresses of the name, such as the pods of a headless Service.
            .defaultLoadBalancingPolicy("round_robin")
            .defaultServiceConfig(serviceConfig())
            .enableRetry()
            // Detect a server that disappeared without closing the connection.
            .keepAliveTime(10, SECONDS)
            .keepAliveTimeout(1, SECONDS);
    // gRPC would send the path of a Unix domain socket as the authority, which is not valid.
    return (target.startsWith("unix:") ? channel.overrideAuthority("localhost") : channel).build();
  }

  /**
   * Sends one call, with a new request id: however often gRPC repeats it, it takes one unit. Make
   * the id here. Never copy it from a client of yours, who could then pass without paying.
   */
  private static String check(RateLimitServiceBlockingStub limits, String userId) {
    String requestId = UUID.randomUUID().toString();
    CheckRequest request =
        CheckRequest.newBuilder().setUserId(userId).setRequestId(requestId).build();
    CheckResponse response;
    try {
      response = limits.withDeadlineAfter(DEADLINE_MS, MILLISECONDS).check(request);
    } catch (StatusRuntimeException error) {
      return switch (error.getStatus().getCode()) {
        // Errors caused by this client: throw them.
        case INVALID_ARGUMENT, PERMISSION_DENIED, UNAUTHENTICATED, UNIMPLEMENTED -> throw error;
        // Usually UNAVAILABLE or DEADLINE_EXCEEDED.
        default -> "no response (" + error.getStatus().getCode() + "): "
            + (FAIL_OPEN ? "allowed" : "503 Service Unavailable");
      };
    }
    if (response.getAllowed()) {
      return "allowed, " + response.getRemaining() + " left";
    }
    if (response.hasRetryAfter()) {
      Duration wait = response.getRetryAfter();
      long seconds = wait.getSeconds() + (wait.getNanos() > 0 ? 1 : 0);
      return "429 Too Many Requests, Retry-After: " + seconds;
    }
    // Waiting does not help: the cost is above the limit, or the limit is 0.
    return "403 Forbidden, " + response.getReason();
  }

  public static void main(String[] args) throws IOException {
    ManagedChannel channel = connect(args.length > 0 ? args[0] : "127.0.0.1:50051");
    RateLimitServiceBlockingStub limits = RateLimitServiceGrpc.newBlockingStub(channel);
    BufferedReader users = new BufferedReader(new InputStreamReader(System.in));
    for (String userId; (userId = users.readLine()) != null; ) {
      System.out.println(userId + ": " + check(limits, userId));
    }
    channel.shutdown();
  }
}
