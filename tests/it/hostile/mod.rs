//! Hostile administration: calls that are not admitted change and show nothing, and no text of a
//! caller forges a line of the log or an entry of the audit.
//!
//! The calls are every method of every service of `ratelimit.admin.v1`, by the descriptors, and
//! every route below `/v1/admin` of the description of the HTTP API: a new one is among them.

mod envoy;
mod forged_text;
mod refused;
pub(crate) mod wire;

use prost_reflect::DescriptorPool;
use rlaas_testkit::process::Rlaas;
use serde_json::Value;

/// A value that no answer to an intruder may have.
const SECRET_USER: &str = "alice-s3cret";

/// Returns the paths of every administrative method over gRPC.
fn rpcs() -> Vec<String> {
    let pool = DescriptorPool::decode(rlaas_proto::FILE_DESCRIPTOR_SET).expect("descriptors");
    let services = pool.services().filter(|one| one.package_name() == "ratelimit.admin.v1");
    let methods = services.flat_map(|service| service.methods().collect::<Vec<_>>());
    let path = |method: prost_reflect::MethodDescriptor| {
        format!("/{}/{}", method.parent_service().full_name(), method.name())
    };
    let paths: Vec<String> = methods.map(path).collect();
    assert!(paths.len() >= 3, "{paths:?}");
    paths
}

/// Returns the verb and the path of every administrative route over HTTP; those of projects are of
/// the project "", which always exists.
async fn routes(server: &Rlaas) -> Vec<(String, String)> {
    let document: Value =
        serde_json::from_str(&server.get("/openapi.json").await.1).expect("a description");
    let paths = document["paths"].as_object().expect("paths");
    let prefixes = ["/v1/admin", "/v1/projects", "/v1/catalogue"];
    let administrative =
        paths.iter().filter(|(path, _)| prefixes.iter().any(|prefix| path.starts_with(prefix)));
    let routes: Vec<(String, String)> = administrative
        .flat_map(|(path, verbs)| {
            let verbs = verbs.as_object().expect("verbs").keys();
            verbs.map(|verb| (verb.to_uppercase(), with_values(path)))
        })
        .collect();
    // UpdateRule has two: PUT and PATCH.
    assert_eq!(routes.len(), rpcs().len() + 1, "each method has a route: {routes:?}");
    routes
}

/// Returns a path with `_` for each parameter.
fn with_values(path: &str) -> String {
    let mut parts = path.split('{');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.filter_map(|part| part.split_once('}')).fold(first, |path, (_, rest)| path + "_" + rest)
}

/// A generator of random numbers that are the same in each run.
///
/// **Source:** Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (`SplitMix64`).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        let index = self.next() % u64::try_from(choices.len()).expect("a small number");
        &choices[usize::try_from(index).expect("a small number")]
    }
}
