//! CLUSTER SLOTS: the map of a cluster in the view of one server.

use deadpool_redis::redis::{RedisResult, Value, cmd};

use crate::store::redis::codec::keys::SLOTS;
use crate::store::redis::connection::Address;
use crate::store::redis::connection::options::ConnectOptions;

/// A range of slots of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) first: u16,
    pub(crate) last: u16,
    pub(crate) address: Address,
}

/// Queries a server for the map.
pub(crate) async fn query(options: &ConnectOptions, server: &Address) -> RedisResult<Vec<Range>> {
    let mut connection = options.connect(server).await?;
    let reply: Value = cmd("CLUSTER").arg("SLOTS").query_async(&mut connection).await?;
    Ok(parse(&reply, server))
}

/// Parses a reply to CLUSTER SLOTS. Each range has its first and last slot, and its servers, with
/// the master first. Invalid ranges are skipped.
fn parse(reply: &Value, server: &Address) -> Vec<Range> {
    let Value::Array(ranges) = reply else { return Vec::new() };
    ranges.iter().filter_map(|range| parse_range(range, server)).collect()
}

fn parse_range(range: &Value, server: &Address) -> Option<Range> {
    let Value::Array(range) = range else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = range.as_slice() else {
        return None;
    };
    let [host, Value::Int(port), ..] = master.as_slice() else { return None };
    let host = match host {
        Value::BulkString(host) => str::from_utf8(host).ok()?,
        Value::SimpleString(host) => host,
        Value::Nil => "",
        _ => return None,
    };
    let host = match host {
        // The server does not know its own address: it is the one that we are connected to.
        "" => server.host(),
        "?" => return None,
        host => host,
    };
    let slot = |slot: i64| u16::try_from(slot).ok().filter(|slot| *slot < SLOTS);
    let address = Address::Tcp { host: host.to_owned(), port: u16::try_from(*port).ok()? };
    let (first, last) = (slot(*first)?, slot(*last)?);
    (first <= last).then_some(Range { first, last, address })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.to_owned(), port }
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn valid_ranges_are_parsed_and_others_are_skipped() {
        let server = address("server", 1);
        let range = |first, last, host, port| {
            let master =
                Value::Array(vec![host, Value::Int(port), text("id"), Value::Array(vec![])]);
            Value::Array(vec![Value::Int(first), Value::Int(last), master])
        };
        let reply = Value::Array(vec![
            range(0, 5460, text("10.0.0.1"), 7000),
            range(5461, 10922, text(""), 7001),
            range(10923, 16383, Value::Nil, 7002),
            range(0, 16384, text("h"), 7003),
            range(-1, 5, text("h"), 7003),
            range(7, 6, text("h"), 7003),
            range(0, 5, text("?"), 7003),
            range(0, 5, text("h"), 70_000),
            Value::Array(vec![Value::Int(0)]),
            Value::Okay,
        ]);
        let expected = [
            Range { first: 0, last: 5460, address: address("10.0.0.1", 7000) },
            Range { first: 5461, last: 10922, address: address("server", 7001) },
            Range { first: 10923, last: 16383, address: address("server", 7002) },
        ];
        assert_eq!(parse(&reply, &server), expected);
        assert_eq!(parse(&Value::Nil, &server), []);
    }
}
