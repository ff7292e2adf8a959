//! Confinement on macOS: writes a Seatbelt profile for `sandbox-exec`.

#![cfg_attr(not(any(test, target_os = "macos")), allow(dead_code))]

use std::path::Path;

use crate::{Confinement, NetworkAccess, UnixSocketAccess};

/// Returns the profile for a confinement. In Seatbelt, later rules override earlier ones.
pub(crate) fn seatbelt_profile(confinement: &Confinement) -> String {
    let mut rules = String::from(
        "(version 1)\n\
         (deny default)\n\
         (allow process-fork process-exec)\n\
         (allow signal (target same-sandbox))\n\
         (allow process-info* (target same-sandbox))\n\
         (allow sysctl-read)\n\
         (allow mach-lookup (global-name \"com.apple.system.opendirectoryd.libinfo\"))\n\
         (allow ipc-posix-sem)\n\
         (allow pseudo-tty)\n\
         (allow file-read*)\n\
         (allow file-ioctl (regex #\"^/dev/tty\"))\n\
         (allow file-write* (literal \"/dev/null\") (literal \"/dev/zero\") \
         (literal \"/dev/tty\") (regex #\"^/dev/ttys\"))\n",
    );
    let mut rule = |operation: &str, path: &Path| {
        rules.push_str(&format!("({operation} (subpath {}))\n", quote(path)));
    };
    for path in &confinement.writable {
        rule("allow file-write*", path);
    }
    for path in &confinement.protected {
        rule("deny file-write*", path);
    }
    for path in &confinement.hidden {
        rule("deny file-read* file-write*", path);
    }
    for path in &confinement.protected {
        let regex = case_insensitive_regex(path);
        rules.push_str(&format!("(deny file-write* (regex #\"{regex}\"))\n"));
    }
    // Without network access there is no rule: macOS has no private loopback interface, and
    // services of the host listen on the shared one.
    if confinement.network == NetworkAccess::On {
        rules.push_str("(allow network*)\n(allow mach-lookup)\n");
        if confinement.unix_sockets == UnixSocketAccess::Off {
            // Only Unix sockets have a path. The system resolves host names through this one.
            rules.push_str(
                "(deny network* (subpath \"/\"))\n\
                 (allow network-outbound (literal \"/private/var/run/mDNSResponder\"))\n",
            );
        }
    } else if confinement.unix_sockets == UnixSocketAccess::On {
        rules.push_str("(allow network* (subpath \"/\"))\n");
    }
    rules
}

/// Returns a regular expression for a path and everything below it that ignores the case of the
/// last name, because most Macs have a file system that does. The name may not exist yet, so the
/// system cannot look up how it is written.
fn case_insensitive_regex(path: &Path) -> String {
    let text = path.to_string_lossy();
    let (folder, name) = text.rsplit_once('/').unwrap_or(("", &text));
    // A character with a meaning in patterns becomes a wildcard, which denies a little more.
    let literal = |c: char| match c {
        '.' => "[.]".to_owned(),
        c if c.is_alphanumeric() || "/_- ".contains(c) => c.to_string(),
        _ => ".".to_owned(),
    };
    let either = |c: char| match c.is_ascii_alphabetic() {
        true => format!("[{}{}]", c.to_ascii_lowercase(), c.to_ascii_uppercase()),
        false => literal(c),
    };
    let folder: String = folder.chars().map(literal).collect();
    let name: String = name.chars().map(either).collect();
    format!("^{folder}/{name}(/|$)")
}

fn quote(path: &Path) -> String {
    format!(
        "\"{}\"",
        path.to_string_lossy()
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn confinement(network: NetworkAccess, unix_sockets: UnixSocketAccess) -> Confinement {
        Confinement {
            writable: vec!["/Users/me/a \"b\"".into()],
            protected: vec!["/Users/me/a \"b\"/.git".into()],
            hidden: vec!["/Users/me/.ssh".into()],
            network,
            unix_sockets,
            ..Confinement::default()
        }
    }

    /// Deny rules follow the allow rules that they override, and without network access no rule
    /// allows a connection, not even to the loopback interface.
    #[test]
    fn the_profile_without_network_allows_no_connection() {
        let profile = seatbelt_profile(&confinement(NetworkAccess::Off, UnixSocketAccess::Off));
        assert_eq!(
            profile,
            r##"(version 1)
(deny default)
(allow process-fork process-exec)
(allow signal (target same-sandbox))
(allow process-info* (target same-sandbox))
(allow sysctl-read)
(allow mach-lookup (global-name "com.apple.system.opendirectoryd.libinfo"))
(allow ipc-posix-sem)
(allow pseudo-tty)
(allow file-read*)
(allow file-ioctl (regex #"^/dev/tty"))
(allow file-write* (literal "/dev/null") (literal "/dev/zero") (literal "/dev/tty") (regex #"^/dev/ttys"))
(allow file-write* (subpath "/Users/me/a \"b\""))
(deny file-write* (subpath "/Users/me/a \"b\"/.git"))
(deny file-read* file-write* (subpath "/Users/me/.ssh"))
(deny file-write* (regex #"^/Users/me/a .b./[.][gG][iI][tT](/|$)"))
"##
        );
    }

    #[test]
    fn the_profile_with_network_allows_unix_sockets_only_if_they_are_on() {
        let network_rules = |network, unix_sockets| {
            let profile = seatbelt_profile(&confinement(network, unix_sockets));
            let (_, rules) = profile.rsplit_once("(/|$)\"))\n").unwrap();
            rules.to_owned()
        };
        assert_eq!(
            network_rules(NetworkAccess::On, UnixSocketAccess::Off),
            "(allow network*)\n(allow mach-lookup)\n(deny network* (subpath \"/\"))\n\
             (allow network-outbound (literal \"/private/var/run/mDNSResponder\"))\n"
        );
        assert_eq!(
            network_rules(NetworkAccess::On, UnixSocketAccess::On),
            "(allow network*)\n(allow mach-lookup)\n"
        );
        assert_eq!(
            network_rules(NetworkAccess::Off, UnixSocketAccess::On),
            "(allow network* (subpath \"/\"))\n"
        );
    }
}
