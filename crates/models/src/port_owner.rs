//! Finds out which user's process listens on a port of this machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// State of a listening socket in the kernel's tables.
const LISTENING: &str = "0A";

/// Returns the id of the user whose process listens on a loopback port. Returns `None` if the
/// system does not report it, or if processes of several users listen on the port.
pub(crate) fn port_owner(port: u16) -> Option<u32> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(std::fs::read_to_string);
    let mut users: Vec<u32> = tables
        .iter()
        .flatten()
        .flat_map(|table| listening_users(table, port))
        .collect();
    users.dedup();
    match users[..] {
        [user] => Some(user),
        _ => None,
    }
}

/// Returns the user of each socket in a table of the kernel that accepts connections to the
/// loopback address on this port.
fn listening_users(table: &str, port: u16) -> impl Iterator<Item = u32> {
    table.lines().skip(1).filter_map(move |line| {
        // Number, local address, remote address, state, queues, timer, retransmits, user.
        let mut fields = line.split_whitespace().skip(1);
        let (address, bound) = fields.next()?.split_once(':')?;
        let state = fields.nth(1)?;
        let user = fields.nth(3)?.parse().ok()?;
        let is_ours = u16::from_str_radix(bound, 16) == Ok(port) && state == LISTENING;
        let address = parse_address(address)?;
        let accepts_loopback = address.is_loopback() || address.is_unspecified();
        (is_ours && accepts_loopback).then_some(user)
    })
}

/// Parses an address of the kernel's tables: words of 32 bits in hexadecimal, each in the byte
/// order of the machine.
fn parse_address(text: &str) -> Option<IpAddr> {
    let word = |index: usize| {
        let digits = text.get(8 * index..8 * (index + 1))?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let mut bytes = [0; 16];
            for (index, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(index)?);
            }
            Some(Ipv6Addr::from(bytes).to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of a little-endian machine.
    #[cfg(target_endian = "little")]
    #[test]
    fn listening_sockets_are_found_by_port() {
        let table = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:2CAA 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 1
   1: 0100007F:2CAA 0100007F:9999 01 00000000:00000000 00:00000000 00000000  1002        0 2
   2: 0101A8C0:2CAA 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1003        0 3
   3: 00000000:2CAB 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4
";
        let users = |port| listening_users(table, port).collect::<Vec<_>>();
        assert_eq!(
            (users(11434), users(11435), users(1)),
            (vec![1001], vec![0], vec![])
        );
        let loopback = "00000000000000000000000001000000";
        assert!(parse_address(loopback).is_some_and(|address| address.is_loopback()));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_owner_of_an_own_port_is_known() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(port_owner(port).is_some());
        drop(listener);
    }
}
