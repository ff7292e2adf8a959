//! Counters of a network namespace that show whether a command tried to reach other hosts.
//!
//! A confined command without network access runs in a namespace that has no route to other hosts.
//! The kernel counts the packets and connections that had no route, per namespace, so the init
//! process knows for certain that the command tried. Nothing here allocates: the init process uses
//! it.

/// What the counters of a network namespace show, as part of the exit report of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct NetworkCounters {
    /// Connections and packets to addresses without a route.
    pub(crate) no_route: u32,
    /// Packets to a UDP port of this machine on which nothing listens, such as that of a name
    /// server outside the namespace.
    pub(crate) no_port: u32,
}

impl NetworkCounters {
    /// Reads the counters from the contents of `/proc/net/snmp` and `/proc/net/snmp6`.
    pub(crate) fn parse(snmp: &[u8], snmp6: &[u8]) -> Self {
        let no_route6 = named_value(snmp6, b"Ip6OutNoRoutes");
        let no_port6 = named_value(snmp6, b"Udp6NoPorts");
        Self {
            no_route: column_value(snmp, b"Ip:", b"OutNoRoutes").saturating_add(no_route6),
            no_port: column_value(snmp, b"Udp:", b"NoPorts").saturating_add(no_port6),
        }
    }
}

/// Returns the value of a column: the first line of the protocol has the names, the second the
/// values. 0 if there is no such column.
fn column_value(text: &[u8], protocol: &[u8], name: &[u8]) -> u32 {
    let mut lines = text
        .split(|byte| *byte == b'\n')
        .filter(|line| line.starts_with(protocol));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else {
        return 0;
    };
    let mut columns = words(names).zip(words(values));
    columns
        .find(|(column, _)| *column == name)
        .map_or(0, |(_, value)| parse_number(value))
}

/// Returns the value of a line that begins with this name. 0 if there is none.
fn named_value(text: &[u8], name: &[u8]) -> u32 {
    let mut lines = text.split(|byte| *byte == b'\n').map(words);
    let value = lines.find_map(|mut line| (line.next() == Some(name)).then(|| line.next())?);
    value.map_or(0, parse_number)
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| byte.is_ascii_whitespace())
        .filter(|word| !word.is_empty())
}

fn parse_number(digits: &[u8]) -> u32 {
    digits.iter().fold(0u32, |number, digit| {
        let digit = u32::from(digit.wrapping_sub(b'0'));
        number.saturating_mul(10).saturating_add(digit.min(9))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_by_name() {
        let snmp = b"Ip: Forwarding DefaultTTL OutDiscards OutNoRoutes\nIp: 2 64 0 14\n\
            Icmp: InMsgs\nIcmp: 5\nUdp: InDatagrams NoPorts\nUdp: 7 3\nUdpLite: NoPorts\nUdpLite: 9\n";
        let snmp6 = b"Ip6InReceives   \t6\nIp6OutNoRoutes                  \t2\nUdp6NoPorts \t1\n";
        let counters = NetworkCounters::parse(snmp, snmp6);
        assert_eq!((counters.no_route, counters.no_port), (16, 4));
        assert_eq!(
            NetworkCounters::parse(b"", b"Ip6"),
            NetworkCounters::default()
        );
    }
}
