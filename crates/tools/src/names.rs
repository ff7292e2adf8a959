//! Conversion between spellings of names, and suggestions for misspelled names.

/// Converts `create_issue` to `createIssue`. Parts separated by dots are converted separately.
pub fn camel_case(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut chars = name.chars().peekable();
    while let Some(c) = chars.next() {
        let is_inside_word = out.ends_with(char::is_alphanumeric)
            && chars.peek().is_some_and(|next| next.is_alphanumeric());
        match c {
            '_' | '-' | ' ' | '/' | ':' if is_inside_word => {
                out.extend(chars.next().into_iter().flat_map(char::to_uppercase))
            }
            '-' | ' ' | '/' | ':' => out.push('_'),
            c => out.push(c),
        }
    }
    out
}

/// Converts `createIssue` to `create_issue`.
pub fn snake_case(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 4);
    let mut previous_lower = false;
    for c in name.chars() {
        if c.is_uppercase() && previous_lower {
            out.push('_');
        }
        previous_lower = c.is_lowercase() || c.is_ascii_digit();
        out.extend(if c == '-' { '_' } else { c }.to_lowercase());
    }
    out
}

/// Longest name that is compared with others, in bytes.
const MAX_NAME_BYTES: usize = 80;

/// Returns at most three of `known` that are similar to `wrong`, the most similar first.
pub fn similar_names<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let normalised = |name: &str| {
        name.chars()
            .filter(|c| c.is_alphanumeric())
            .flat_map(char::to_lowercase)
            .collect::<String>()
    };
    // Names come from untrusted input: very long ones are not compared.
    if wrong.len() > MAX_NAME_BYTES {
        return Vec::new();
    }
    let wanted = normalised(wrong);
    if wanted.is_empty() {
        return Vec::new();
    }
    let mut scored: Vec<(usize, &str)> = known
        .into_iter()
        .filter(|name| name.len() <= MAX_NAME_BYTES)
        .filter_map(|name| {
            let candidate = normalised(name);
            let distance = strsim::damerau_levenshtein(&wanted, &candidate);
            let length = wanted.chars().count();
            let is_near = distance <= if length < 6 { 1 } else { (length / 3).max(2) };
            let contains = wanted.len() >= 3
                && candidate.len() >= 3
                && (candidate.contains(&wanted) || wanted.contains(&candidate));
            (is_near || contains).then_some((distance, name))
        })
        .collect();
    scored.sort();
    scored
        .into_iter()
        .map(|(_, name)| name.to_owned())
        .take(3)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_converted_between_spellings() {
        assert_eq!(camel_case("create_issue"), "createIssue");
        assert_eq!(
            camel_case("mcp.git-hub.create_pull_request"),
            "mcp.gitHub.createPullRequest"
        );
        assert_eq!(camel_case("__proto__"), "__proto__");
        assert_eq!(snake_case("createIssue"), "create_issue");
        assert_eq!(snake_case("timeoutMs"), "timeout_ms");
        assert_eq!(snake_case("exportToPDF"), "export_to_pdf");
    }

    #[test]
    fn similar_names_are_found() {
        let known = ["createIssue", "listIssues", "weatherToday", "pay"];
        assert_eq!(similar_names("creatIssue", known), ["createIssue"]);
        assert_eq!(similar_names("create_issue", known), ["createIssue"]);
        assert_eq!(similar_names("weather", known), ["weatherToday"]);
        assert!(similar_names("zzzzzz", known).is_empty());
    }
}
