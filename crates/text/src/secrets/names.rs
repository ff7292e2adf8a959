//! Names of fields and variables whose values are secret.

/// Parts of the names of secrets, without `_`, `-` and `.` between words.
const SECRET_PARTS: &str = "\
    accesskey accountkey apikey authorization authtoken cookie credential passphrase passw \
    pgpass privatekey secret token";

/// Last words of names that describe a secret and do not contain it, such as `token_file`.
const DESCRIPTIVE_SUFFIXES: &str = "\
    alg algorithm budget class count description dir enabled endpoint error expires expiry field \
    file format hint index kind label len length limit name path pattern placeholder policy \
    position ref required rules size status ttl type uri url version";

/// Parts of the names of secrets in every spelling, as patterns of an automaton.
pub(super) const NAME_PATTERNS: &str = "\
    api_key api-key apikey access_key access-key accesskey account_key accountkey authorization \
    cookie credential pass private_key private-key privatekey pwd secret token";

/// Returns whether a field or variable with this name contains a secret.
pub(super) fn is_secret(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let plain = lower.replace(['_', '-', '.'], "");
    let last = last_word(name).to_ascii_lowercase();
    if DESCRIPTIVE_SUFFIXES.split(' ').any(|word| word == last) {
        return false;
    }
    let is_token_count =
        counts_tokens(name) || plain.contains("maxtoken") || plain.contains("tokeniz");
    let has = |part: &str| plain.contains(part) && !(part == "token" && is_token_count);
    SECRET_PARTS.split(' ').any(has) || last == "pass" || last == "pwd" || plain.ends_with("pwd")
}

/// Returns whether a name means a number of tokens, such as `max_tokens`.
fn counts_tokens(name: &str) -> bool {
    name.to_ascii_lowercase()
        .match_indices("tokens")
        .any(|(at, word)| {
            let after = name[at + word.len()..].chars().next();
            let all_capitals = name[at..].starts_with("TOKENS");
            !after.is_some_and(|c| {
                if all_capitals {
                    c.is_alphabetic()
                } else {
                    c.is_lowercase()
                }
            })
        })
}

/// Returns the last word of a name in any spelling: `file` of `token_file`, `tokenFile` and
/// `TOKEN-FILE`.
fn last_word(name: &str) -> &str {
    let part = name.rsplit(['_', '-', '.']).next().unwrap_or(name);
    let camel = part.rfind(|c: char| c.is_ascii_uppercase());
    match camel {
        Some(at) if part[..at].ends_with(|c: char| c.is_ascii_lowercase()) => &part[at..],
        _ => part,
    }
}
