use serde_json::json;

use super::*;

fn call(id: &str, digest: &str, use_as: PriorUse) -> PriorCall {
    PriorCall {
        id: id.to_owned(),
        tool: "pay".to_owned(),
        args: json!({"to": digest}),
        digest: digest.to_owned(),
        use_as,
        idempotency_key: id.replace('/', "."),
    }
}

fn reusable(id: &str, digest: &str, value: Value) -> PriorCall {
    call(id, digest, PriorUse::Reuse(value))
}

fn undecided(id: &str, digest: &str) -> PriorCall {
    call(id, digest, PriorUse::Undecided)
}

fn prior(calls: Vec<PriorCall>) -> PriorCalls {
    PriorCalls::new("scr_1", calls, BTreeSet::from(["scr_0/tool_1".to_owned()]))
}

fn reuse(prior_call: &str, value: Value) -> PriorLookup {
    PriorLookup::Reuse {
        prior_call: prior_call.to_owned(),
        value,
    }
}

#[test]
fn a_recorded_call_answers_identical_calls_once_in_recorded_order() {
    let prior = prior(vec![
        reusable("scr_1/tool_1", "a", json!(1)),
        reusable("scr_1/tool_2", "b", json!(2)),
        reusable("scr_1/tool_3", "a", json!(3)),
    ]);
    let change = |id: &str, digest: &str| prior.look_up(id, digest, CallEffect::MayChange);
    assert_eq!(change("tool_1", "a"), reuse("scr_1/tool_1", json!(1)));
    assert_eq!(change("tool_2", "a"), reuse("scr_1/tool_3", json!(3)));
    assert_eq!(change("tool_3", "a"), PriorLookup::Run);
    assert_eq!(change("tool_4", "c"), PriorLookup::Run);
    let warning = prior.reuse_warning().unwrap();
    assert!(
        warning.contains("scr_1/tool_1 pay {\"to\":\"a\"}; scr_1/tool_3"),
        "{warning}"
    );
    assert!(!warning.contains("tool_2"), "{warning}");
}

#[test]
fn a_change_throws_until_each_undecided_call_is_decided() {
    let prior = prior(vec![
        reusable("scr_1/tool_1", "a", json!(1)),
        undecided("scr_1/tool_2", "b"),
        undecided("scr_1/tool_3", "c"),
    ]);
    let change = |id: &str, digest: &str| prior.look_up(id, digest, CallEffect::MayChange);
    // The undecided call itself, and one that was never made.
    assert_eq!(change("tool_1", "b"), PriorLookup::Undecided);
    assert_eq!(change("tool_2", "new"), PriorLookup::Undecided);
    // Completed calls are answered, and paid reads run.
    assert_eq!(change("tool_3", "a"), reuse("scr_1/tool_1", json!(1)));
    assert_eq!(
        prior.look_up("tool_4", "read", CallEffect::ReadOnly),
        PriorLookup::Run
    );

    prior
        .decide("scr_1/tool_2", ResumeDecision::Repeat)
        .unwrap();
    assert_eq!(
        change("tool_5", "b"),
        PriorLookup::Undecided,
        "one is still undecided"
    );
    let skip = ResumeDecision::Skip(json!({"ok": true}));
    prior.decide("scr_1/tool_3", skip).unwrap();
    let repeat = PriorLookup::Repeat {
        prior_call: "scr_1/tool_2".to_owned(),
        idempotency_key: Some("scr_1.tool_2".to_owned()),
    };
    assert_eq!(change("tool_6", "b"), repeat);
    let value = json!({"ok": true});
    assert_eq!(change("tool_7", "c"), PriorLookup::Skip { value });
    assert_eq!(change("tool_8", "c"), PriorLookup::Run);
    let used = prior.decide("scr_1/tool_3", ResumeDecision::Repeat);
    assert!(matches!(used, Err(DecisionError::Used { .. })), "{used:?}");
}

#[test]
fn the_error_names_the_run_each_call_and_how_to_decide_it() {
    let prior = prior(vec![
        undecided("scr_1/tool_2", "b"),
        undecided("tsk_9", "c"),
    ]);
    let failure = prior.undecided_failure("create_issue");
    assert_eq!(failure.code, ErrorCode::OutcomeUnknownError);
    for part in [
        "createIssue did not run",
        "first decide these calls of unknown outcome",
        "scr_1/tool_2 pay {\"to\":\"b\"}",
        "tsk_9 pay",
    ] {
        assert!(failure.message.contains(part), "{}", failure.message);
    }
    let hints = failure.suggestions.join("\n");
    for line in [
        "resume.repeat(\"scr_1/tool_2\")",
        "resume.skip(\"tsk_9\", value)",
    ] {
        assert!(hints.contains(line), "{hints}");
    }
    assert_eq!(failure.metadata["undecided"][1]["args"], json!({"to": "c"}));
}

#[test]
fn a_completed_call_can_be_repeated_under_a_new_idempotency_key() {
    let prior = prior(vec![reusable("scr_1/tool_1", "a", json!(1))]);
    prior
        .decide("scr_1/tool_1", ResumeDecision::Repeat)
        .unwrap();
    let repeat = PriorLookup::Repeat {
        prior_call: "scr_1/tool_1".to_owned(),
        idempotency_key: None,
    };
    assert_eq!(prior.look_up("tool_1", "a", CallEffect::MayChange), repeat);
    assert_eq!(prior.reuse_warning(), None);
}

#[test]
fn decisions_must_name_recorded_calls() {
    let calls = prior(vec![reusable("scr_1/tool_1", "a", json!(1))]);
    let error = calls.decide("tool_1", ResumeDecision::Repeat).unwrap_err();
    let message = "`tool_1` cannot be decided: only calls to reuse or of unknown outcome can, \
         which are scr_1/tool_1";
    assert_eq!(error.to_string(), message);
    // A run of the chain has repeated this one.
    assert_eq!(calls.decide("scr_0/tool_1", ResumeDecision::Repeat), Ok(()));
    let skip = calls.decide("scr_0/tool_1", ResumeDecision::Skip(json!(1)));
    assert_eq!(
        skip,
        Err(DecisionError::Repeated("scr_0/tool_1".to_owned()))
    );
    let none = prior(Vec::new())
        .decide("x", ResumeDecision::Repeat)
        .unwrap_err();
    assert!(
        none.to_string()
            .ends_with("the resumed run has no call to reuse or of unknown outcome"),
        "{none}"
    );
}

#[test]
fn a_restored_script_makes_its_open_calls_again() {
    let calls = vec![
        reusable("scr_1/tool_1", "a", json!(1)),
        undecided("scr_1/tool_2", "b"),
    ];
    let before = prior(calls.clone());
    before
        .decide("scr_1/tool_2", ResumeDecision::Repeat)
        .unwrap();
    before.look_up("tool_1", "a", CallEffect::MayChange);
    let repeat = before.look_up("tool_2", "b", CallEffect::MayChange);
    let saved = serde_json::to_string(&before.snapshot()).unwrap();

    let after = prior(calls);
    after.restore(&serde_json::from_str(&saved).unwrap());
    assert_eq!(after.look_up("tool_2", "b", CallEffect::MayChange), repeat);
    assert_eq!(
        after.look_up("tool_3", "a", CallEffect::MayChange),
        PriorLookup::Run
    );
}

#[test]
fn a_refused_repetition_leaves_the_decision_to_the_next_identical_call() {
    let prior = prior(vec![undecided("scr_1/tool_1", "a")]);
    prior
        .decide("scr_1/tool_1", ResumeDecision::Repeat)
        .unwrap();
    let first = prior.look_up("tool_1", "a", CallEffect::MayChange);
    prior.release("tool_1");
    assert_eq!(prior.look_up("tool_2", "a", CallEffect::MayChange), first);
}

#[test]
fn a_warning_names_each_unused_decision() {
    let prior = prior(vec![undecided("scr_1/tool_1", "a")]);
    prior
        .decide("scr_1/tool_1", ResumeDecision::Repeat)
        .unwrap();
    assert_eq!(
        prior.look_up("tool_1", "b", CallEffect::MayChange),
        PriorLookup::Run
    );
    let warnings = prior.warnings();
    assert!(
        warnings[0].contains("scr_1/tool_1 was not used"),
        "{warnings:?}"
    );
}

#[test]
fn the_warning_names_each_reused_call_and_no_skipped_one() {
    let id = |n: usize| format!("scr_1/tool_{n}");
    let mut calls = vec![undecided("scr_1/tool_0", "a")];
    calls.extend((1..=MAX_DESCRIBED_CALLS + 2).map(|n| reusable(&id(n), "a", json!(n))));
    let prior = prior(calls);
    prior
        .decide(&id(0), ResumeDecision::Skip(json!(0)))
        .unwrap();
    for n in 0..=MAX_DESCRIBED_CALLS + 2 {
        prior.look_up(&format!("tool_{n}"), "a", CallEffect::MayChange);
    }
    let warning = prior.reuse_warning().unwrap();
    assert_eq!(
        warning.matches(" pay {").count(),
        MAX_DESCRIBED_CALLS,
        "{warning}"
    );
    assert!(!warning.contains("tool_0"), "{warning}");
    for n in 1..=MAX_DESCRIBED_CALLS + 2 {
        let separator = if n <= MAX_DESCRIBED_CALLS { ' ' } else { ';' };
        let name = format!("{}{separator}", id(n));
        assert!(warning.contains(&name), "no {name}: {warning}");
    }
}

#[test]
fn the_failure_names_each_undecided_call_and_its_lines() {
    let id = |n: usize| format!("scr_1/tool_{n}");
    let count = MAX_DESCRIBED_CALLS + 4;
    let prior = prior((1..=count).map(|n| undecided(&id(n), "a")).collect());
    let failure = prior.undecided_failure("pay");
    assert_eq!(failure.message.matches(" pay {").count(), count);
    assert_eq!(
        failure.metadata["undecided"].as_array().map(Vec::len),
        Some(count)
    );
    for n in 1..=count {
        for line in [
            format!("resume.repeat(\"{}\")", id(n)),
            format!("resume.skip(\"{}\", value)", id(n)),
        ] {
            let has_line = |text: &String| text.starts_with(&line);
            assert!(failure.suggestions.iter().any(has_line), "no {line}");
        }
    }
}

#[test]
fn a_decision_belongs_to_its_recorded_call() {
    let prior = prior(vec![
        reusable("scr_1/tool_1", "a", json!(1)),
        undecided("scr_1/tool_2", "a"),
    ]);
    prior
        .decide("scr_1/tool_2", ResumeDecision::Skip(json!(2)))
        .unwrap();
    let change = |id: &str| prior.look_up(id, "a", CallEffect::MayChange);
    assert_eq!(change("tool_1"), reuse("scr_1/tool_1", json!(1)));
    assert_eq!(change("tool_2"), PriorLookup::Skip { value: json!(2) });
}
