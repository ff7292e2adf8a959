//! Recognises the output of test runners and counts what passed and failed.
//!
//! Each runner has a function that reads its closing lines. They are tried in order; the first that
//! finds a result decides.

/// The result of a test run.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct TestRunResult {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
    /// The names of failed tests, in order, each once.
    pub(crate) failures: Vec<String>,
    /// What is counted, if it is not tests.
    unit: Option<&'static str>,
}

/// Names of failed tests in a summary. More are counted only.
const MAX_LISTED_FAILURES: usize = 3;
/// Characters of a failed test's name in a summary.
const MAX_FAILURE_CHARS: usize = 60;

impl TestRunResult {
    /// Describes the result: `115 passed`, `2 failed: test_a, test_b; 3 passed`.
    pub(crate) fn describe(&self) -> String {
        let unit = self.unit.map(|unit| format!(" {unit}")).unwrap_or_default();
        let mut parts = Vec::new();
        if self.failed > 0 {
            let listed = &self.failures[..self.failures.len().min(MAX_LISTED_FAILURES)];
            let mut text = format!("{}{unit} failed", self.failed);
            if !listed.is_empty() {
                let more = if self.failures.len() > listed.len() {
                    ", …"
                } else {
                    ""
                };
                text.push_str(&format!(": {}{more}", listed.join(", ")));
            }
            parts.push(text);
        }
        if self.passed > 0 || self.failed == 0 {
            parts.push(format!("{}{unit} passed", self.passed));
        }
        let mut text = parts.join("; ");
        if self.skipped > 0 {
            text.push_str(&format!(", {} skipped", self.skipped));
        }
        text
    }

    fn add_failure(&mut self, name: &str) {
        let name: String = name.trim().chars().take(MAX_FAILURE_CHARS).collect();
        // More names than are listed only say that there are more.
        let has_room = self.failures.len() <= 2 * MAX_LISTED_FAILURES;
        if has_room && !name.is_empty() && !self.failures.contains(&name) {
            self.failures.push(name);
        }
    }
}

/// Finds the result of a test run in an output. `None` if no runner is recognised.
pub(crate) fn parse_test_run(output: &str) -> Option<TestRunResult> {
    RUNNERS.iter().find_map(|parse| parse(output))
}

const RUNNERS: &[fn(&str) -> Option<TestRunResult>] = &[
    nextest, cargo_test, pytest, unittest, vitest, jest, mocha, surefire, gradle, rspec, minitest,
    phpunit, dotnet, tap, go_test, ex_unit,
];

/// Returns the number before a word: 3 for `passed` in `3 passed, 1 failed`.
fn number_before(line: &str, word: &str) -> Option<u64> {
    let mut before = None;
    for token in line.split(|c: char| c.is_whitespace() || ",;|()[].".contains(c)) {
        if token.is_empty() {
            continue;
        }
        if token == word
            && let Some(number) = before
        {
            return Some(number);
        }
        before = token.parse().ok();
    }
    None
}

/// Returns the number after a label: 5 for `Failures:` in `Tests: 9, Failures: 5.`.
fn number_after(line: &str, label: &str) -> Option<u64> {
    let rest = line.split_once(label)?.1.trim_start();
    let digits = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

/// `Summary [ 0.5s] 115 tests run: 113 passed, 2 failed, 1 skipped`.
fn nextest(output: &str) -> Option<TestRunResult> {
    let is_summary = |line: &&str| line.starts_with("Summary [") && line.contains(" run: ");
    let line = output.lines().map(str::trim).rfind(is_summary)?;
    let timed_out = line.split_once(" timed out").and_then(|(before, _)| {
        let number = before.split_whitespace().next_back()?;
        number.parse::<u64>().ok()
    });
    let mut run = TestRunResult {
        passed: number_before(line, "passed").unwrap_or(0),
        failed: number_before(line, "failed").unwrap_or(0) + timed_out.unwrap_or(0),
        skipped: number_before(line, "skipped").unwrap_or(0),
        ..TestRunResult::default()
    };
    for line in output.lines().map(str::trim) {
        let mut marks = ["FAIL [", "TIMEOUT [", "SIGABRT [", "SIGSEGV ["].iter();
        if marks.any(|mark| line.starts_with(mark))
            && let Some(name) = line.split_whitespace().next_back()
        {
            run.add_failure(name);
        }
    }
    Some(run)
}

/// `test result: FAILED. 2 passed; 1 failed; 0 ignored; …`, once per test binary.
fn cargo_test(output: &str) -> Option<TestRunResult> {
    let mut run: Option<TestRunResult> = None;
    for line in output.lines().map(str::trim) {
        if line.starts_with("test result: ") {
            let run = run.get_or_insert_default();
            run.passed += number_before(line, "passed").unwrap_or(0);
            run.failed += number_before(line, "failed").unwrap_or(0);
            run.skipped += number_before(line, "ignored").unwrap_or(0);
        }
    }
    let mut run = run?;
    for line in output.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("test ")
            && let Some(name) = name.strip_suffix("... FAILED")
        {
            // `src/lib.rs - f (line 3)` for an example in the documentation.
            run.add_failure(name.trim_end().trim_end_matches(" - should panic"));
        }
    }
    Some(run)
}

/// `=== 2 failed, 5 passed in 0.12s ===`, or the same without a frame.
fn pytest(output: &str) -> Option<TestRunResult> {
    let is_summary = |line: &&str| {
        let line = line.trim_matches(|c: char| c == '=' || c.is_whitespace());
        let starts = line.starts_with(|c: char| c.is_ascii_digit());
        let words = [
            "passed",
            "failed",
            "error",
            "errors",
            "skipped",
            "deselected",
        ];
        starts
            && line.contains(" in ")
            && words.iter().any(|word| number_before(line, word).is_some())
    };
    let line = output.lines().rev().find(is_summary)?;
    let count = |word| number_before(line, word).unwrap_or(0);
    let mut run = TestRunResult {
        passed: count("passed"),
        failed: count("failed") + count("error").max(count("errors")),
        skipped: count("skipped"),
        ..TestRunResult::default()
    };
    for line in output.lines() {
        let name = line.strip_prefix("FAILED ").or(line.strip_prefix("ERROR "));
        if let Some(name) = name {
            let name = name.split(" - ").next().unwrap_or(name);
            // The folder of the file does not distinguish tests.
            let (path, test) = name.split_once("::").map_or((name, ""), |(a, b)| (a, b));
            let file = path.rsplit('/').next().unwrap_or(path);
            match test.is_empty() {
                true => run.add_failure(file),
                false => run.add_failure(&format!("{file}::{test}")),
            }
        }
    }
    Some(run)
}

/// `Ran 12 tests in 0.01s` and `OK` or `FAILED (failures=1, errors=1)`.
fn unittest(output: &str) -> Option<TestRunResult> {
    let line = output
        .lines()
        .rev()
        .find(|line| line.starts_with("Ran ") && line.contains(" test") && line.contains(" in "))?;
    let all: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    let end = output
        .lines()
        .rev()
        .map(str::trim)
        .find(|line| !line.is_empty())?;
    let count = |name| number_after(end, name).unwrap_or(0);
    let failed = count("failures=") + count("errors=");
    let skipped = count("skipped=");
    let mut run = TestRunResult {
        passed: all.saturating_sub(failed + skipped),
        failed,
        skipped,
        ..TestRunResult::default()
    };
    for line in output.lines() {
        if let Some(name) = line.strip_prefix("FAIL: ").or(line.strip_prefix("ERROR: ")) {
            run.add_failure(name.split_whitespace().next().unwrap_or(name));
        }
    }
    Some(run)
}

/// `Tests  1 failed | 5 passed (6)`.
fn vitest(output: &str) -> Option<TestRunResult> {
    let is_summary =
        |line: &&str| line.trim_start().starts_with("Tests  ") && line.trim_end().ends_with(')');
    let line = output.lines().rev().find(is_summary)?;
    let mut run = TestRunResult {
        passed: number_before(line, "passed").unwrap_or(0),
        failed: number_before(line, "failed").unwrap_or(0),
        skipped: number_before(line, "skipped").unwrap_or(0),
        ..TestRunResult::default()
    };
    for line in output.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("FAIL ") {
            run.add_failure(name.split(" [").next().unwrap_or(name));
        }
    }
    Some(run)
}

/// `Tests:       1 failed, 5 passed, 6 total`.
fn jest(output: &str) -> Option<TestRunResult> {
    let line = output.lines().rev().find(|line| {
        line.starts_with("Tests:")
            && (number_before(line, "passed").is_some() || number_before(line, "failed").is_some())
    })?;
    let mut run = TestRunResult {
        passed: number_before(line, "passed").unwrap_or(0),
        failed: number_before(line, "failed").unwrap_or(0),
        skipped: number_before(line, "skipped").unwrap_or(0),
        ..TestRunResult::default()
    };
    for line in output.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("● ")
            && name.contains(" › ")
        {
            run.add_failure(name);
        }
    }
    if run.failures.is_empty() {
        for line in output.lines() {
            if let Some(file) = line.strip_prefix("FAIL ") {
                run.add_failure(file);
            }
        }
    }
    Some(run)
}

/// `5 passing (20ms)`, `2 failing`, `1 pending`.
fn mocha(output: &str) -> Option<TestRunResult> {
    let count = |word: &str| {
        let mut lines = output.lines().map(str::trim);
        lines.find_map(|line| {
            let (number, rest) = line.split_once(' ')?;
            (rest == word || rest.starts_with(&format!("{word} ("))).then(|| number.parse().ok())?
        })
    };
    let passed: u64 = count("passing")?;
    let mut run = TestRunResult {
        passed,
        failed: count("failing").unwrap_or(0),
        skipped: count("pending").unwrap_or(0),
        ..TestRunResult::default()
    };
    let before = output.lines().take_while(|line| !line.contains(" passing"));
    for line in before.map(str::trim) {
        if let Some((number, name)) = line.split_once(") ")
            && number.parse::<u32>().is_ok()
        {
            run.add_failure(name);
        }
    }
    Some(run)
}

/// Reads the counts of a line such as `Tests: 5, Failures: 1, Errors: 0, Skipped: 0`. `all` is the
/// label of the number of all tests.
fn counts_of_line(line: &str, all: &str) -> TestRunResult {
    let count = |label| number_after(line, label).unwrap_or(0);
    let (failed, skipped) = (count("Failures:") + count("Errors:"), count("Skipped:"));
    TestRunResult {
        passed: count(all).saturating_sub(failed + skipped),
        failed,
        skipped,
        ..TestRunResult::default()
    }
}

/// Maven: `Tests run: 5, Failures: 1, Errors: 0, Skipped: 0`. The last line without a class counts.
fn surefire(output: &str) -> Option<TestRunResult> {
    let is_summary = |line: &&str| line.contains("Tests run:") && line.contains("Failures:");
    let is_total = |line: &&str| is_summary(line) && !line.contains("Time elapsed");
    let line = output
        .lines()
        .rev()
        .find(is_total)
        .or_else(|| output.lines().rev().find(is_summary))?;
    let mut run = counts_of_line(line, "Tests run:");
    for line in output.lines() {
        // `[ERROR]   CartTest.addsItems:21 expected: <2> but was: <1>`
        if let Some(rest) = line.strip_prefix("[ERROR]   ")
            && let Some(name) = rest.split([' ', ':']).next()
            && name.contains('.')
        {
            run.add_failure(name);
        }
    }
    Some(run)
}

/// Gradle: `5 tests completed, 1 failed` and `CartTest > addsItems() FAILED`.
fn gradle(output: &str) -> Option<TestRunResult> {
    let line = output
        .lines()
        .map(str::trim)
        .rfind(|line| line.contains(" tests completed"))?;
    let failed = number_before(line, "failed").unwrap_or(0);
    let skipped = number_before(line, "skipped").unwrap_or(0);
    let all = line.split_whitespace().next()?.parse::<u64>().ok()?;
    let mut run = TestRunResult {
        passed: all.saturating_sub(failed + skipped),
        failed,
        skipped,
        ..TestRunResult::default()
    };
    for line in output.lines().map(str::trim) {
        if let Some(name) = line.strip_suffix(" FAILED")
            && name.contains(" > ")
        {
            run.add_failure(name);
        }
    }
    Some(run)
}

/// `5 examples, 1 failure, 1 pending`.
fn rspec(output: &str) -> Option<TestRunResult> {
    let all = |line: &str| number_before(line, "examples").or(number_before(line, "example"));
    let line = output
        .lines()
        .rev()
        .find(|line| all(line).is_some() && line.contains("failure"))?;
    let failed = number_before(line, "failures")
        .or(number_before(line, "failure"))
        .unwrap_or(0);
    let skipped = number_before(line, "pending").unwrap_or(0);
    let mut run = TestRunResult {
        passed: all(line)?.saturating_sub(failed + skipped),
        failed,
        skipped,
        ..TestRunResult::default()
    };
    for line in output.lines() {
        if let Some(rest) = line.strip_prefix("rspec ")
            && let Some((place, name)) = rest.split_once(" # ")
        {
            let file = place.rsplit('/').next().unwrap_or(place);
            run.add_failure(&format!("{file} {name}"));
        }
    }
    Some(run)
}

/// `5 runs, 7 assertions, 1 failures, 0 errors, 0 skips`.
fn minitest(output: &str) -> Option<TestRunResult> {
    let line = output.lines().rev().find(|line| {
        number_before(line, "runs").is_some() && number_before(line, "assertions").is_some()
    })?;
    let count = |word| number_before(line, word).unwrap_or(0);
    let (failed, skipped) = (count("failures") + count("errors"), count("skips"));
    let mut run = TestRunResult {
        passed: count("runs").saturating_sub(failed + skipped),
        failed,
        skipped,
        ..TestRunResult::default()
    };
    for line in output.lines().map(str::trim) {
        // `TestCart#test_adds [test/cart_test.rb:8]:`
        let name = line.split([' ', ':']).next().unwrap_or_default();
        if name.contains("#test_") {
            run.add_failure(name);
        }
    }
    Some(run)
}

/// `OK (5 tests, 7 assertions)` or `Tests: 5, Assertions: 7, Failures: 1.`.
fn phpunit(output: &str) -> Option<TestRunResult> {
    let passed = output
        .lines()
        .rev()
        .find(|line| line.starts_with("OK (") && line.contains("assertion"));
    if let Some(line) = passed {
        return Some(TestRunResult {
            passed: number_before(line, "tests").or(number_before(line, "test"))?,
            ..TestRunResult::default()
        });
    }
    let line = output
        .lines()
        .rev()
        .find(|line| line.starts_with("Tests: ") && line.contains("Assertions: "))?;
    let mut run = counts_of_line(line, "Tests:");
    for line in output.lines() {
        if let Some((number, name)) = line.split_once(") ")
            && number.parse::<u32>().is_ok()
            && name.contains("::")
        {
            run.add_failure(name);
        }
    }
    Some(run)
}

/// `Failed!  - Failed: 1, Passed: 5, Skipped: 0, Total: 6`, once per project.
fn dotnet(output: &str) -> Option<TestRunResult> {
    let mut run: Option<TestRunResult> = None;
    for line in output.lines().map(str::trim) {
        if (line.starts_with("Passed!") || line.starts_with("Failed!")) && line.contains("Total:") {
            let run = run.get_or_insert_default();
            run.passed += number_after(line, "Passed:").unwrap_or(0);
            run.failed += number_after(line, " Failed:").unwrap_or(0);
            run.skipped += number_after(line, "Skipped:").unwrap_or(0);
        }
    }
    let mut run = run?;
    for line in output.lines() {
        if let Some(name) = line.strip_prefix("  Failed ") {
            run.add_failure(name.split(" [").next().unwrap_or(name));
        }
    }
    Some(run)
}

/// The TAP format and the runner of Node: `# pass 8` or `ℹ pass 8`.
fn tap(output: &str) -> Option<TestRunResult> {
    let count = |word: &str| {
        let mut lines = output.lines().rev().map(str::trim);
        lines.find_map(|line| {
            let rest = line.strip_prefix("# ").or(line.strip_prefix("ℹ "))?;
            let rest = rest.strip_prefix(word)?.trim();
            rest.parse::<u64>().ok()
        })
    };
    let (passed, failed) = (count("pass"), count("fail"));
    if passed.is_none() && failed.is_none() {
        return None;
    }
    let mut run = TestRunResult {
        passed: passed.unwrap_or(0),
        failed: failed.unwrap_or(0),
        skipped: count("skipped").unwrap_or(0),
        ..TestRunResult::default()
    };
    for line in output.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("not ok ") {
            let name = rest
                .trim_start_matches(|c: char| c.is_ascii_digit())
                .trim_start();
            run.add_failure(name.strip_prefix("- ").unwrap_or(name));
        } else if let Some(name) = line.strip_prefix("✖ ")
            && !name.starts_with("failing tests")
        {
            run.add_failure(name.rsplit_once(" (").map_or(name, |(name, _)| name));
        }
    }
    Some(run)
}

/// `--- FAIL: TestX (0.00s)`, `ok  pkg 0.01s`. Without `-v` only packages are counted.
fn go_test(output: &str) -> Option<TestRunResult> {
    let mut tests = TestRunResult::default();
    let mut packages = TestRunResult {
        unit: Some("packages"),
        ..TestRunResult::default()
    };
    for line in output.lines() {
        let trimmed = line.trim_start();
        if trimmed.starts_with("--- PASS: ") {
            tests.passed += 1;
        } else if trimmed.starts_with("--- SKIP: ") {
            tests.skipped += 1;
        } else if let Some(name) = trimmed.strip_prefix("--- FAIL: ") {
            tests.failed += 1;
            tests.add_failure(name.split_whitespace().next().unwrap_or(name));
        } else if line.starts_with("ok  \t") || line.starts_with("ok\t") {
            packages.passed += 1;
        } else if let Some(package) = line.strip_prefix("FAIL\t") {
            packages.failed += 1;
            packages.add_failure(package.split_whitespace().next().unwrap_or(package));
        }
    }
    if tests.passed + tests.failed > 0 {
        return Some(tests);
    }
    (packages.passed + packages.failed > 0).then_some(packages)
}

/// ExUnit and other runners: `5 tests, 1 failure`, or `5 passed, 1 failed` on a line of its own.
fn ex_unit(output: &str) -> Option<TestRunResult> {
    for line in output.lines().rev().map(str::trim) {
        let starts = line.starts_with(|c: char| c.is_ascii_digit());
        let all = number_before(line, "tests").or(number_before(line, "test"));
        let failed = number_before(line, "failures").or(number_before(line, "failure"));
        if starts && let (Some(all), Some(failed)) = (all, failed) {
            let skipped = number_before(line, "skipped").unwrap_or(0);
            return Some(TestRunResult {
                passed: all.saturating_sub(failed + skipped),
                failed,
                skipped,
                ..TestRunResult::default()
            });
        }
        if starts
            && let (Some(passed), Some(failed)) =
                (number_before(line, "passed"), number_before(line, "failed"))
        {
            return Some(TestRunResult {
                passed,
                failed,
                skipped: number_before(line, "skipped").unwrap_or(0),
                ..TestRunResult::default()
            });
        }
    }
    None
}
