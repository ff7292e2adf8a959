//! Secrets with a known format: prefixes that services use, and key blocks.

use std::ops::Range;
use std::sync::{LazyLock, OnceLock};

use aho_corasick::AhoCorasick;
use regex_lite::Regex;

use super::evidence::entropy;

/// Prefixes of secrets, and the regular expression of the whole format. A leading `\b` means that
/// the format must not start inside a word.
pub(super) const FORMATS: &[(&[&str], &str)] = &[
    // Requires 16 letters and digits in a row: `sk-container-id-1` is the class of an HTML element.
    (
        &["sk-"],
        r"\bsk-[A-Za-z0-9_-]*?[A-Za-z0-9]{16}[A-Za-z0-9_-]*",
    ),
    (
        &[
            "sk_live_", "rk_live_", "pk_live_", "sk_test_", "rk_test_", "pk_test_",
        ],
        r"[srp]k_(?:live|test)_[A-Za-z0-9]{10,}",
    ),
    (&["whsec_"], r"whsec_[A-Za-z0-9+/=_-]{16,}"),
    (
        &["ghp_", "gho_", "ghu_", "ghs_", "ghr_"],
        r"gh[pousr]_[A-Za-z0-9]{20,}",
    ),
    (&["github_pat_"], r"github_pat_[A-Za-z0-9_]{20,}"),
    (
        &["glpat-", "gldt-", "glrt-", "glptt-"],
        r"gl(?:pat|dt|rt|ptt)-[A-Za-z0-9_.-]{16,}",
    ),
    (
        &["xoxa-", "xoxb-", "xoxe-", "xoxp-", "xoxr-", "xoxs-"],
        r"xox[abeprs]-[A-Za-z0-9-]{10,}",
    ),
    (&["xapp-"], r"xapp-[0-9]-[A-Za-z0-9-]{10,}"),
    (
        &["hooks.slack.com/"],
        r"hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/_-]{16,}",
    ),
    (
        &["discord.com/api/webhooks/", "discordapp.com/api/webhooks/"],
        r"discord(?:app)?\.com/api/webhooks/[0-9]+/[A-Za-z0-9_-]{20,}",
    ),
    // Discord: an id in Base64, a timestamp, a signature.
    (
        &["MT", "Mj", "Mz", "ND", "NT", "Nj", "Nz", "OD", "OT"],
        r"\b[MNO][A-Za-z0-9_-]{22,28}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,}",
    ),
    (&["SG."], r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    (&["SK"], r"\bSK[0-9a-f]{32}\b"),
    (&["pypi-"], r"pypi-Ag[A-Za-z0-9_-]{16,}"),
    (&["ya29."], r"\bya29\.[A-Za-z0-9_-]{16,}"),
    (&["GOCSPX-"], r"GOCSPX-[A-Za-z0-9_-]{16,}"),
    (&["dckr_pat_"], r"dckr_pat_[A-Za-z0-9_-]{10,}"),
    (&["AKIA", "ASIA"], r"\bA[KS]IA[A-Z0-9]{16}\b"),
    (&["AIza"], r"\bAIza[A-Za-z0-9_-]{30,}"),
    (&["npm_"], r"\bnpm_[A-Za-z0-9]{30,}"),
    (&["hf_"], r"\bhf_[A-Za-z0-9]{20,}"),
    (&["gsk_"], r"\bgsk_[A-Za-z0-9]{20,}"),
    (&["xai-"], r"\bxai-[A-Za-z0-9]{20,}"),
    (&["pplx-"], r"pplx-[A-Za-z0-9]{20,}"),
    (&["r8_"], r"\br8_[A-Za-z0-9]{20,}"),
    (&["tvly-"], r"tvly-[A-Za-z0-9_-]{16,}"),
    (&["hvs.", "hvb."], r"\bhv[sb]\.[A-Za-z0-9_-]{20,}"),
    (
        &["doo_v1_", "dop_v1_", "dor_v1_"],
        r"do[opr]_v1_[A-Za-z0-9]{20,}",
    ),
    (
        &["shpat_", "shpss_", "shpca_", "shppa_"],
        r"shp(?:at|ss|ca|pa)_[A-Za-z0-9]{20,}",
    ),
    (&["ATATT3x"], r"ATATT3x[A-Za-z0-9_=-]{20,}"),
    (&["ATCTT3x"], r"ATCTT3x[A-Za-z0-9_=-]{20,}"),
    (&["lin_api_"], r"lin_api_[A-Za-z0-9]{20,}"),
    (&["ntn_"], r"\bntn_[A-Za-z0-9]{20,}"),
    (&["secret_"], r"\bsecret_[A-Za-z0-9]{40,}"),
    (&["sntrys_", "sntryu_"], r"sntry[su]_[A-Za-z0-9_=+/-]{20,}"),
    (&["dapi"], r"\bdapi[0-9a-f]{32}"),
    (&["figd_"], r"\bfigd_[A-Za-z0-9_-]{20,}"),
    (&["PMAK-"], r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}"),
    (&["rubygems_"], r"rubygems_[0-9a-f]{40,}"),
    (&["NRAK-"], r"NRAK-[A-Z0-9]{20,}"),
    (&["glc_", "glsa_"], r"\bgl(?:c|sa)_[A-Za-z0-9_=+/-]{20,}"),
    (
        &["fo1_", "fm1_", "fm2_"],
        r"\bf(?:o1|m[12])_[A-Za-z0-9_=+/-]{30,}",
    ),
    (&["sbp_"], r"\bsbp_[0-9a-f]{40}"),
    (&["pul-"], r"\bpul-[0-9a-f]{40}"),
    (&["EAAA", "EAAC", "EAAG"], r"\bEAA[ACG][A-Za-z0-9_-]{50,}"),
    (&["key-"], r"\bkey-[0-9a-f]{32}\b"),
    (&["AGE-SECRET-KEY-1"], r"AGE-SECRET-KEY-1[0-9A-Za-z]{20,}"),
    (
        &["eyJ"],
        r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}",
    ),
    // Telegram: `find` also requires the bot's id before the colon.
    (&[":AA"], r":AA[A-Za-z0-9_-]{32,}"),
    // Key blocks extend to their end line, or to the end of the text.
    (
        &["-----BEGIN "],
        concat!(
            r"-----BEGIN (?:[A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?|PGP MESSAGE)-----(?s:.*?)",
            r"(?:-----END (?:[A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?|PGP MESSAGE)-----|\z)",
        ),
    ),
    (
        &["---- BEGIN SSH2 "],
        concat!(
            r"---- BEGIN SSH2 (?:ENCRYPTED )?PRIVATE KEY ----(?s:.*?)",
            r"(?:---- END SSH2 (?:ENCRYPTED )?PRIVATE KEY ----|\z)",
        ),
    ),
    (
        &["PuTTY-User-Key-File-"],
        r"PuTTY-User-Key-File-[0-9]+: [a-z](?s:.*?)(?:Private-(?:MAC|Hash): *[0-9a-fA-F]+|\z)",
    ),
];

/// Minimum entropy of a secret in bits per byte. Below it the text is an example, such as
/// `sk-xxxxxxxx`.
const MIN_FORMAT_ENTROPY: f64 = 2.0;

/// One automaton for the prefixes of all formats. A regular expression is compiled when a text
/// first contains one of its prefixes.
struct FormatFinder {
    prefixes: AhoCorasick,
    /// Index into `FORMATS` of each prefix.
    format_of_prefix: Vec<usize>,
    patterns: Vec<OnceLock<Regex>>,
}

#[allow(clippy::expect_used)] // The prefixes are constants, and few.
static FORMAT_FINDER: LazyLock<FormatFinder> = LazyLock::new(|| {
    let formats = FORMATS.iter().enumerate();
    let prefixes = formats
        .flat_map(|(index, (prefixes, _))| prefixes.iter().map(move |prefix| (index, *prefix)));
    let (format, prefixes): (Vec<_>, Vec<_>) = prefixes.unzip();
    FormatFinder {
        prefixes: AhoCorasick::new(prefixes).expect("few prefixes"),
        format_of_prefix: format,
        patterns: FORMATS.iter().map(|_| OnceLock::new()).collect(),
    }
});

/// Returns the ranges of secrets with a known format, in order.
pub(super) fn find(text: &str) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    let mut end = 0;
    for prefix in FORMAT_FINDER.prefixes.find_overlapping_iter(text) {
        let (mut start, format) = (
            prefix.start(),
            FORMAT_FINDER.format_of_prefix[prefix.pattern()],
        );
        let source = FORMATS[format].1;
        let inner = source.strip_prefix(r"\b");
        if start < end || inner.is_some() && continues_word(text, start) {
            continue;
        }
        let pattern =
            FORMAT_FINDER.patterns[format].get_or_init(|| compile(inner.unwrap_or(source)));
        let Some(secret) = pattern.find(&text[start..]) else {
            continue;
        };
        let sample = &secret.as_str()[..secret.as_str().floor_char_boundary(256)];
        let after = start + secret.end();
        if entropy(sample) < MIN_FORMAT_ENTROPY {
            end = after;
            continue;
        }
        if source.starts_with(':') {
            let preceding = text[..start].bytes().rev().take(11);
            let digits = preceding.take_while(u8::is_ascii_digit).count();
            if !(8..=10).contains(&digits) {
                continue;
            }
            start -= digits;
        }
        end = after;
        found.push(start..end);
    }
    found
}

#[allow(clippy::expect_used)] // The patterns are constants, and a test covers each.
fn compile(pattern: &str) -> Regex {
    Regex::new(&format!(r"\A(?:{pattern})")).expect("a valid pattern")
}

/// Returns whether `at` is inside a word. An escape such as `\n` or `%3D` ends a word.
fn continues_word(text: &str, at: usize) -> bool {
    let before = &text.as_bytes()[..at];
    match before {
        [.., b'\\', b'n' | b'r' | b't'] | [.., b'%', _, b'0'..=b'9' | b'A'..=b'F'] => false,
        [.., b'u', _, _, _, _] if before[..at - 5].ends_with(b"\\") => false,
        // The end of a terminal colour sequence.
        [.., b'm'] => {
            let recent = &before[at.saturating_sub(16)..];
            let colour = recent.iter().rposition(|byte| *byte == 0x1b);
            colour.is_none_or(|at| recent.get(at + 1) != Some(&b'['))
        }
        [.., last] => last.is_ascii_alphanumeric() || matches!(last, b'_' | b'-'),
        [] => false,
    }
}
