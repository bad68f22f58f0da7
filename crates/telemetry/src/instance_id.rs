//! The id by which instances are told apart, in traces and among those of a fleet.

use std::sync::Arc;

use ring::rand::{SecureRandom, SystemRandom};

/// Id of an instance: host name and a random suffix. Each default is another one.
#[derive(Clone, Debug)]
pub struct InstanceId(Arc<str>);

impl Default for InstanceId {
    fn default() -> Self {
        let name = rustix::system::uname();
        let host = name.nodename().to_string_lossy();
        let host: String = host.chars().filter(|c| !c.is_control()).take(64).collect();
        let mut suffix = [0; 4];
        // Without random numbers the process id tells instances of one host apart.
        if SystemRandom::new().fill(&mut suffix).is_err() {
            suffix = std::process::id().to_be_bytes();
        }
        Self(format!("{host}-{:08x}", u32::from_be_bytes(suffix)).into())
    }
}

impl InstanceId {
    /// Returns the id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
