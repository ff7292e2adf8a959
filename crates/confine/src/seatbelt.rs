//! Confinement on macOS: writes a Seatbelt profile for `sandbox-exec`.

#![cfg_attr(not(any(test, target_os = "macos")), allow(dead_code))]

use std::path::Path;

use crate::{Confinement, NetworkAccess};

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
    if confinement.network == NetworkAccess::On {
        rules.push_str("(allow network*)\n(allow mach-lookup)\n");
    } else {
        rules.push_str("(allow network* (local ip \"localhost:*\") (remote ip \"localhost:*\"))\n");
    }
    rules
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

    #[test]
    fn deny_rules_follow_the_allow_rules_they_override() {
        let confinement = Confinement {
            writable: vec!["/Users/me/a \"b\"".into()],
            protected: vec!["/Users/me/a \"b\"/.git".into()],
            hidden: vec!["/Users/me/.ssh".into()],
            ..Confinement::default()
        };
        let profile = seatbelt_profile(&confinement);
        let at = |text: &str| {
            profile
                .find(text)
                .unwrap_or_else(|| panic!("{text} is not in\n{profile}"))
        };
        assert!(
            at("(allow file-write* (subpath \"/Users/me/a \\\"b\\\"\"))")
                < at("(deny file-write* (subpath \"/Users/me/a")
        );
        assert!(
            at("(allow file-read*)")
                < at("(deny file-read* file-write* (subpath \"/Users/me/.ssh\"))")
        );
        assert!(!profile.contains("(allow network*)\n"));
    }
}
