//! The client that an address stands for.

use std::io::Write;
use std::net::{IpAddr, Ipv6Addr};

/// Replaces an address, in `out` from `start` on, by the client that it stands for: without port,
/// brackets and zone; IPv4 as such also within IPv6; IPv6 by its /64, which is what one client is
/// given. What is no address stays as it is.
pub(super) fn replace_by_client(out: &mut Vec<u8>, start: usize) {
    let Some(address) = parse(&out[start..]) else { return };
    out.truncate(start);
    let written = match address.to_canonical() {
        IpAddr::V4(address) => write!(out, "{address}"),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            write!(out, "{}/64", Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    };
    written.expect("a vector takes all that is written");
}

/// Parses `1.2.3.4`, `1.2.3.4:80`, `::1`, `[::1]`, `[::1]:80` and `fe80::1%eth0`.
fn parse(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text).ok()?.trim();
    if let Some(bracketed) = text.strip_prefix('[') {
        let (address, port) = bracketed.split_once(']')?;
        let is_port = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
        return is_port.then(|| parse_v6(address)).flatten();
    }
    match text.split_once(':') {
        None => text.parse().ok(),
        Some((address, port)) if is_port(port) && address.contains('.') => address.parse().ok(),
        Some(_) => parse_v6(text),
    }
}

fn parse_v6(text: &str) -> Option<IpAddr> {
    let address = text.split_once('%').map_or(text, |(address, _)| address);
    address.parse().ok().map(IpAddr::V6)
}

fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn client(text: &str) -> String {
        let mut out = format!("before {text}").into_bytes();
        replace_by_client(&mut out, "before ".len());
        String::from_utf8(out).expect("text")["before ".len()..].to_owned()
    }

    #[test]
    fn ports_brackets_and_zones_are_dropped() {
        for (text, expected) in [
            ("192.0.2.1", "192.0.2.1"),
            ("192.0.2.1:8080", "192.0.2.1"),
            (" 192.0.2.1 ", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("[::ffff:192.0.2.1]:8080", "192.0.2.1"),
            ("2001:DB8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
            ("2001:db8:1:2::", "2001:db8:1:2::/64"),
            ("[2001:db8:1:2::9]", "2001:db8:1:2::/64"),
            ("[2001:db8:1:2::9]:443", "2001:db8:1:2::/64"),
            ("fe80::1%eth0", "fe80::/64"),
            ("[fe80::1%eth0]:80", "fe80::/64"),
            ("::1", "::/64"),
        ] {
            assert_eq!(client(text), expected, "{text}");
        }
    }

    #[test]
    fn other_texts_stay_as_they_are() {
        for text in
            ["", "example.org", "example.org:80", "unix:", "[", "[::1", "[::1]x", "1.2.3", "-"]
        {
            assert_eq!(client(text), text);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn every_way_to_write_an_address_is_one_client(v4: u32, v6: u128, port: u16) {
            let v4 = std::net::Ipv4Addr::from(v4);
            let mapped = v4.to_ipv6_mapped();
            for text in [format!("{v4}:{port}"), format!("{mapped}"), format!("[{mapped}]:{port}")] {
                prop_assert_eq!(client(&text), v4.to_string());
            }
            let group = client(&Ipv6Addr::from(v6).to_string());
            let neighbour = Ipv6Addr::from(v6 ^ u128::from(port));
            prop_assert_eq!(client(&format!("[{neighbour}]:{port}")), group);
        }

        #[test]
        fn any_bytes_are_taken(bytes: Vec<u8>) {
            replace_by_client(&mut bytes.clone(), 0);
        }
    }
}
