//! The process: parse, run, exit code.

fn main() {}
